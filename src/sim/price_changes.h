#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "ops/op_traits.h"
#include "sim/cost_model.h"
#include "trace/exposed.h"

namespace braid {

inline constexpr double kSamePrice = 1.0;

/// Changes of a cost model's prices: for ranges, for machines with a slow part, and for questions
/// such as "what if this took half the time?". Factors of the time of a task alone; they multiply.
/// What tasks do to each other (contention) stays as it is.
struct PriceChanges {
  double products = kSamePrice;
  double fp8_products = kSamePrice;  ///< those of FP8 factors, in addition
  double attention = kSamePrice;
  double memory_bound = kSamePrice;
  double node_links = kSamePrice;                                  ///< communication inside a node
  double network_links = kSamePrice;                               ///< communication between nodes
  std::array<double, kNumGroupKinds> group_kinds = same_prices();  ///< by GroupKind
  std::vector<double> rank_compute = {};  ///< by rank: all compute of that rank; empty: unchanged
  std::vector<double> rank_clock = {};  ///< by rank: its clock (sim/step_clock.h), equal for alike
                                        ///< ranks; empty: each kernel has its own
  std::vector<double> node_network = {};  ///< by node: communication between it and others; the
                                          ///< slowest node of a group counts. Empty: unchanged

  /// All compute tasks.
  static PriceChanges compute(double factor) {
    PriceChanges changes;
    changes.products = changes.attention = changes.memory_bound = factor;
    return changes;
  }

  friend bool operator==(const PriceChanges&, const PriceChanges&) = default;

 private:
  static constexpr std::array<double, kNumGroupKinds> same_prices() {
    std::array<double, kNumGroupKinds> prices{};
    prices.fill(kSamePrice);
    return prices;
  }
};

/// The factor of a compute task on any rank.
double compute_change(const PriceChanges& changes, const OpSpec& spec, OpFamily family);

/// The factor of communication in a group of that kind, of ranks in these places.
double comm_change(const PriceChanges& changes, GroupKind kind, const GroupPlacement& place);

/// The same with that of the nodes, between these ranks of the cluster.
double comm_change(const PriceChanges& changes, const Cluster& cluster, GroupKind kind,
                   std::span<const int> ranks);

}  // namespace braid
