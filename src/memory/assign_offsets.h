#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/live_ranges.h"

namespace braid {

/// Offsets by BufferId; 0 for buffers that take no memory.
struct Packing {
  std::vector<int64_t> offset_bytes;
  int64_t arena_bytes = 0;
};

inline constexpr int64_t kOffsetSearchNs = 500'000'000;

/// An arena of this size is not worth a search for a better one: within half a percent, or 64 KiB,
/// of the bound.
int64_t good_enough_bytes(int64_t lower_bound_bytes);

/// Places buffers so that those that interfere do not overlap, and keeps the arena small. Takes the
/// best of several heuristics if the size of the problem allows more than one (the problem is
/// NP-hard: dynamic storage allocation). Stops at the first that is good enough.
/// `sizes_bytes` is by BufferId. `budget_ns` limits the heuristics after the first. It is counted
/// in steps and not measured, so that equal programs get equal plans. The offsets are multiples of
/// any number that divides all sizes.
Packing assign_offsets(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                       int64_t lower_bound_bytes, int64_t budget_ns = kOffsetSearchNs);

class Sweeps;

/// The same for the buffers of `sweeps`, which keeps packings for the next call.
Packing assign_offsets(Sweeps& sweeps, int64_t lower_bound_bytes, int64_t budget_ns);

}  // namespace braid
