#pragma once

#include <cstdint>
#include <vector>

namespace braid {

/// The time [begin, end) in nanoseconds.
struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;

  friend bool operator==(const Interval&, const Interval&) = default;
};

/// Merges intervals into ascending ones that neither overlap nor touch, and drops empty ones. O(n
/// log n). The other functions take such lists and are linear.
std::vector<Interval> merge_intervals(std::vector<Interval> intervals);

int64_t total_ns(const std::vector<Interval>& merged);
/// The length of the intersection of both lists.
int64_t overlap_ns(const std::vector<Interval>& a, const std::vector<Interval>& b);

}  // namespace braid
