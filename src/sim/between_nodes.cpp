#include "sim/between_nodes.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "sim/comm_steps.h"

namespace braid {
namespace {

/// Times by NCCL's protocols: Simple, LL128, LL.
struct ByProtocol {
  double simple_ns;
  double middle_ns;
  double small_ns;
};

// NCCL's tuning tables: the time before the first step.
constexpr ByProtocol kRingBases{8'400, 14'000, 6'600};
constexpr ByProtocol kTreeBases{8'400, 14'000, 6'800};
constexpr double kSwitchesNs = 25'000;
constexpr double kPatBaseNs = 8'000;
constexpr double kPatRankNs = 2'800;
constexpr double kPatHopPart = 1 / 3.5;
constexpr double kPatRate = 0.75;

// A rank posts every step of a ring to the network: NCCL assumes 1 us beside processors of Intel
// and 2 us beside those of AMD; Simple posts three times. Rings of all-reduces with Simple take 1.4
// times the latency that their steps add up to.
constexpr double kPostNs = 1'500;
constexpr double kSimplePosts = 3;
constexpr double kRingPlateau = 1.4;

// Fitted to the fitting half of bench/published/collectives.txt. LL sends a flag with every word,
// through a buffer of the host between nodes.
constexpr double kTreeLatency = 1.8;          // times the sum of the table's steps
constexpr double kTreeRate = 0.7;             // of the network's
constexpr double kTreeMiddleRate = 0.54;      // of the rate of Simple
constexpr double kMulticastHopNs = 56'000;    // of NVLS trees, from node to node and back
constexpr double kMulticastTreeRate = 0.957;  // of the network's: 0.88 of a NIC
constexpr double kRingMiddleRate = 0.7;
constexpr double kSmallBytesPerNs = 27;  // of LL, all ranks of a node

struct NodesCall {
  const Cluster& cluster;
  const CommSpec& spec;
  const GroupPlacement& place = spec.placement;
  double bytes = static_cast<double>(spec.bytes);
  /// All links of a node together.
  double network = outside_rate(cluster, place) * place.fewest_per_node;
};

/// A node sends the whole buffer up its tree and down: with two nodes, only to each other.
double tree_share(const NodesCall& call) {
  return call.place.num_nodes == 2 ? 1.0 : 2.0;
}

double tree_depth(const NodesCall& call) {
  return std::ceil(std::log2(static_cast<double>(call.place.num_nodes)));
}

double ring_ns(const NodesCall& call) {
  const FabricSpec& in = call.cluster.intra_node;
  const FabricSpec& out = call.cluster.inter_node;
  const CommSteps steps = ring_steps(call.spec.kind, call.place);
  const double long_ns = bytes_ns(call.cluster, call.spec);
  const double rate =
      std::min(inside_rate(call.cluster, call.spec), call.network);  // as bytes_ns has it
  // With one rank in each node nothing hides the network's latency: NCCL takes that of a tree.
  const bool is_alone = call.place.num_ranks == call.place.num_nodes;
  const auto latency = [&](double base_ns, double posts, int64_t in_ns, int64_t out_ns) {
    const double inside_ns = std::max(static_cast<double>(in_ns), posts * kPostNs);
    return base_ns + (steps.all - steps.between_nodes) * inside_ns +
           steps.between_nodes * static_cast<double>(out_ns);
  };
  const double plateau = call.spec.kind == CommKind::kAllReduce ? kRingPlateau : 1.0;
  const double simple = call_ns(call.spec.kind) +
                        plateau * latency(kRingBases.simple_ns, kSimplePosts, in.ring_step_ns,
                                          is_alone ? out.tree_step_ns : out.ring_step_ns) +
                        long_ns;
  const double middle = latency(kRingBases.middle_ns, 1, in.ring_step_middle_ns,
                                is_alone ? out.tree_step_middle_ns : out.ring_step_middle_ns) +
                        long_ns / kRingMiddleRate;
  const double small_rate = std::min(rate / 2, kSmallBytesPerNs);
  const double small = latency(kRingBases.small_ns, 1, in.ring_step_small_ns,
                               is_alone ? out.tree_step_small_ns : out.ring_step_small_ns) +
                       long_ns * rate / small_rate;
  return std::min({simple, middle, small});
}

/// Along a chain of the ranks of each node, across nodes in a binary tree; twice for a sum that all
/// get.
double tree_ns(const NodesCall& call) {
  const FabricSpec& in = call.cluster.intra_node;
  const FabricSpec& out = call.cluster.inter_node;
  const double ways = call.spec.kind == CommKind::kAllReduce ? 2 : 1;
  const double depth = tree_depth(call);
  const double chain =
      std::ceil(static_cast<double>(call.place.num_ranks) / call.place.num_nodes) - 1.0;
  const double rate = kTreeRate * std::min(call.network / tree_share(call),
                                           inside_rate(call.cluster, call.spec) / 2);
  const auto latency = [&](double base_ns, int64_t in_ns, int64_t out_ns) {
    return base_ns + kTreeLatency * ways *
                         (chain * static_cast<double>(in_ns) + depth * static_cast<double>(out_ns));
  };
  const double simple = call_ns(call.spec.kind) +
                        latency(kTreeBases.simple_ns, in.tree_step_ns, out.tree_step_ns) +
                        call.bytes / rate;
  const double middle =
      latency(kTreeBases.middle_ns, in.tree_step_middle_ns, out.tree_step_middle_ns) +
      call.bytes / (rate * kTreeMiddleRate);
  const double small = latency(kTreeBases.small_ns, in.tree_step_small_ns, out.tree_step_small_ns) +
                       call.bytes / std::min(rate / 3.8, kSmallBytesPerNs / 2);
  return std::min({simple, middle, small});
}

/// Switches sum inside the nodes, a tree between them.
double multicast_tree_ns(const NodesCall& call) {
  const double network = kMulticastTreeRate * call.network / tree_share(call);
  return kSwitchesNs + 2 * tree_depth(call) * kMulticastHopNs +
         call.bytes / std::min(multicast_rate(call.cluster), network);
}

/// Parallel aggregated trees: one rank in each node, logarithmic in hops.
double pat_ns(const NodesCall& call) {
  return kPatBaseNs +
         tree_depth(call) * kPatHopPart *
             static_cast<double>(call.cluster.inter_node.ring_step_ns) +
         call.place.num_ranks * kPatRankNs + bytes_ns(call.cluster, call.spec) / kPatRate;
}

}  // namespace

double between_nodes_ns(const Cluster& cluster, const CommSpec& spec) {
  const NodesCall call{.cluster = cluster, .spec = spec};
  switch (spec.algorithm) {
    case CommAlgorithm::kRing:
      return ring_ns(call);
    case CommAlgorithm::kTree:
      return tree_ns(call);
    case CommAlgorithm::kNvlsTree:
      return multicast_tree_ns(call);
    case CommAlgorithm::kPat:
      return pat_ns(call);
    default:
      throw_internal_error("{} between nodes", comm_algorithm_name(spec.algorithm));
  }
}

}  // namespace braid
