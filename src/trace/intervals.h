#pragma once

#include <cstdint>
#include <vector>

namespace braid {

/// Time from begin to end, end not included, in nanoseconds.
struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;

  friend bool operator==(const Interval&, const Interval&) = default;
};

/// The same points of time as ascending intervals that neither overlap nor touch; empty ones are
/// dropped. O(n log n). The other functions take such lists and are linear.
std::vector<Interval> merge_intervals(std::vector<Interval> intervals);

int64_t total_ns(const std::vector<Interval>& merged);
/// Time that is in both.
int64_t overlap_ns(const std::vector<Interval>& a, const std::vector<Interval>& b);

}  // namespace braid
