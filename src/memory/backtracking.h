#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "memory/assign_offsets.h"

namespace braid {

struct BacktrackingOptions {
  int64_t bound_bytes = 0;   ///< no arena is smaller; tried first
  int64_t target_bytes = 0;  ///< an arena of this size ends the search
  int64_t limit_bytes = 0;   ///< only a smaller arena is of use
  int64_t max_steps = 0;     ///< buffers placed, counting those that are taken back
};

/// Places buffers by first task, each at an end of a gap between those that it interferes with.
/// Where one does not fit into the arena, takes the one before back and tries its next place.
/// Remembers places of live buffers from which the others did not fit, so that it looks at none of
/// them twice. Tries an arena of `bound_bytes`, then `target_bytes`, then halves the distance to
/// `limit_bytes` as long as steps are left. For programs in which few buffers live at a time, such
/// as gathered weights: what is wrong then lies a few buffers back. Equal input gives equal
/// packings. Memory: O(pairs with overlapping lifetimes + steps).
std::optional<Packing> pack_by_backtracking(const LiveRanges& ranges,
                                            std::span<const int64_t> sizes_bytes,
                                            const BacktrackingOptions& options);

/// Approximate cost of a step on a core of 3 GHz.
int64_t backtracking_step_ns(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes);

}  // namespace braid
