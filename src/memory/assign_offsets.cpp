#include "memory/assign_offsets.h"

#include "memory/greedy.h"

namespace braid {

Packing assign_offsets(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                       int64_t lower_bound_bytes) {
  Packing best = pack_greedily(ranges, sizes_bytes, GreedyOrder::kArea);
  for (const GreedyOrder order : {GreedyOrder::kLifetime, GreedyOrder::kSize}) {
    if (best.arena_bytes <= lower_bound_bytes + lower_bound_bytes / 200) {
      break;
    }
    Packing other = pack_greedily(ranges, sizes_bytes, order);
    if (other.arena_bytes < best.arena_bytes) {
      best = std::move(other);
    }
  }
  return best;
}

}  // namespace braid
