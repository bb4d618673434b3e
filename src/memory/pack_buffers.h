#pragma once

#include <cstdint>
#include <span>

#include "memory/assign_offsets.h"
#include "memory/live_ranges.h"
#include "memory/max_live.h"

namespace braid {

/// Of a search that runs over many programs, or for a figure that nothing is allocated by.
inline constexpr int64_t kQuickSearchNs = kOffsetSearchNs / 50;

/// Offsets, and what no other offsets can be below.
struct BoundedPacking {
  Packing packing;
  MaxLive bound;
};

/// Gives offsets to the buffers of a program that have a size in `sizes_bytes` (by BufferId), as if
/// there were no others. Stops as soon as the arena is good enough (assign_offsets.h), or after
/// `search_ns`, which is counted in steps: equal input gives equal offsets. A longer search never
/// ends with a larger arena.
BoundedPacking pack_buffers(const Program& program, const TaskOrder& order,
                            const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                            int64_t search_ns);

}  // namespace braid
