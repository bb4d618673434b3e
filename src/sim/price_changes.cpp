#include "sim/price_changes.h"

#include <algorithm>

#include "sim/scaled_product.h"

namespace braid {

double compute_change(const PriceChanges& changes, const OpSpec& spec, OpFamily family) {
  switch (family) {
    case OpFamily::kGemm:
      return changes.products *
             (scales_of_factors(spec) == FactorScales::kNone ? kSamePrice : changes.fp8_products);
    case OpFamily::kAttention:
      return changes.attention;
    case OpFamily::kMemoryBound:
      return changes.memory_bound;
    default:
      return kSamePrice;
  }
}

double comm_change(const PriceChanges& changes, GroupKind kind, const GroupPlacement& place) {
  return changes.group_kinds.at(static_cast<size_t>(kind)) *
         (place.num_nodes > 1 ? changes.network_links : changes.node_links);
}

double comm_change(const PriceChanges& changes, const Cluster& cluster, GroupKind kind,
                   std::span<const int> ranks) {
  const GroupPlacement place = place_group(cluster, ranks);
  const double factor = comm_change(changes, kind, place);
  if (place.num_nodes == 1 || changes.node_network.empty()) {
    return factor;
  }
  double slowest = 0;
  for (const int rank : ranks) {
    slowest = std::max(
        slowest, changes.node_network.at(static_cast<size_t>(rank / cluster.devices_per_node)));
  }
  return factor * slowest;
}

}  // namespace braid
