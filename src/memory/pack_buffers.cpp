#include "memory/pack_buffers.h"

#include <optional>
#include <utility>

#include "memory/heaviest_clique.h"
#include "memory/sweep.h"

namespace braid {
namespace {

/// Of one step of the search for a better bound, which may take a quarter of the time.
constexpr int64_t kNsPerStep = 4 * 5;

/// The heaviest clique: what interferes need not live at one moment of an order that
/// `find_max_live` looks at. A search needs the best bound: below it there is nothing to find.
std::optional<MaxLive> clique_bound(const Program& program, const LiveRanges& ranges,
                                    std::span<const int64_t> sizes_bytes, int64_t search_ns) {
  const auto clique = find_heaviest_clique(ranges, sizes_bytes, search_ns / kNsPerStep);
  return clique ? std::optional(live_together(program, *clique, sizes_bytes)) : std::nullopt;
}

}  // namespace

/// A long search begins as a quick one does, so that it never ends with a larger arena.
BoundedPacking pack_buffers(const Program& program, const TaskOrder& order,
                            const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                            int64_t search_ns) {
  MaxLive bound = find_max_live(program, order, ranges, sizes_bytes);
  Sweeps sweeps(ranges, sizes_bytes);
  Packing packing = assign_offsets(sweeps, bound.bytes, /*budget_ns=*/0);
  std::optional<MaxLive> of_clique;
  for (const int64_t budget_ns : {kQuickSearchNs, kOffsetSearchNs}) {
    if (budget_ns > search_ns || packing.arena_bytes <= good_enough_bytes(bound.bytes)) {
      break;
    }
    if (!of_clique) {
      of_clique = clique_bound(program, ranges, sizes_bytes, budget_ns);
      bound = of_clique && of_clique->bytes > bound.bytes ? *of_clique : bound;
    }
    Packing other = assign_offsets(sweeps, bound.bytes, budget_ns);
    if (other.arena_bytes < packing.arena_bytes) {
      packing = std::move(other);
    }
  }
  return {std::move(packing), bound};
}

}  // namespace braid
