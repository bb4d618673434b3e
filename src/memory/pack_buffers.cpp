#include "memory/pack_buffers.h"

#include <utility>

#include "memory/heaviest_clique.h"

namespace braid {
namespace {

/// Of one step of the search for a better bound, which may take a quarter of the time.
constexpr int64_t kNsPerStep = 4 * 5;

/// What interferes need not live at one moment of an order that `find_max_live` looks at. A search
/// needs the best bound: below it there is nothing to find.
MaxLive better_bound(const Program& program, const LiveRanges& ranges,
                     std::span<const int64_t> sizes_bytes, const MaxLive& bound,
                     int64_t search_ns) {
  const auto clique = find_heaviest_clique(ranges, sizes_bytes, search_ns / kNsPerStep);
  const MaxLive of_clique = clique ? live_together(program, *clique, sizes_bytes) : MaxLive{};
  return of_clique.bytes > bound.bytes ? of_clique : bound;
}

}  // namespace

/// A long search begins as a quick one does, so that it never ends with a larger arena.
BoundedPacking pack_buffers(const Program& program, const TaskOrder& order,
                            const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                            int64_t search_ns) {
  MaxLive bound = find_max_live(program, order, ranges, sizes_bytes);
  Packing packing = assign_offsets(ranges, sizes_bytes, bound.bytes, /*budget_ns=*/0);
  for (const int64_t budget_ns : {kQuickSearchNs, kOffsetSearchNs}) {
    if (budget_ns > search_ns || packing.arena_bytes <= good_enough_bytes(bound.bytes)) {
      break;
    }
    bound = better_bound(program, ranges, sizes_bytes, bound, budget_ns);
    Packing other = assign_offsets(ranges, sizes_bytes, bound.bytes, budget_ns);
    if (other.arena_bytes < packing.arena_bytes) {
      packing = std::move(other);
    }
  }
  return {std::move(packing), bound};
}

}  // namespace braid
