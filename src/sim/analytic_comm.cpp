#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "sim/analytic_model.h"
#include "sim/between_nodes.h"
#include "sim/comm_steps.h"

namespace braid {
namespace {

// Fractions of a link's nominal rate that long messages reach, measured on 2 and 8 x H200 with NCCL
// 2.28 without NVLink multicast: bus bandwidth 365, 340, 318, 353 GB/s of 450 on 8.
constexpr double kAllReduceFraction = 0.825;
constexpr double kGatherFraction = 0.8;
constexpr double kAllToAllFraction = 0.706;
constexpr double kSendFraction = 0.784;
constexpr double kDirectFraction = 0.78;        // pushes of 32 blocks: 352 GB/s
constexpr double kCopyEngineFraction = 0.88;    // 396 GB/s
constexpr double kCopyRotationFraction = 0.78;  // 332 GB/s between 2 ranks, 365 between 8
constexpr double kNetworkFraction = 0.92;       // of a NIC: headers

// A ring runs its steps in loops, and loses this fraction of a step in each: between 2 ranks, whose
// loops have one step, gathers reach 255 GB/s and sums 315.
constexpr double kRingLoopLoss = 0.38;

// NCCL's tuning tables (see device_file.cpp) in microseconds. LL sends a flag with every word and
// in small stores, which leaves about a quarter of the rate; with LL128 in between, 0.4.
constexpr double kRingBaseNs = 8'400;
constexpr double kRingSmallBaseNs = 3'600;
constexpr double kTreeBaseNs = 8'400;
constexpr double kTreeSmallBaseNs = 6'800;
constexpr double kMulticastNs = 25'000;
constexpr double kSmallRate = 0.4;

// The least time of an NCCL call in a step, even with few bytes and steps: its kernels start, and
// the ranks synchronize. Measured between 2 x H200, in graphs, from 64 KiB on; for long messages it
// is what remains after subtracting the time of the bytes.
constexpr double kSmallCallNs = 18'500;
constexpr double kMessageCallNs = 19'000;
constexpr double kCollectiveCallNs = 36'000;

// Copy engines: a push of 64 KiB to 16 MiB takes this time plus that of its bytes. In addition, a
// step of a ring waits for a flag and a step of the rotation for its slowest rank, and a call of
// the rotation starts by synchronizing the ranks.
constexpr double kCopyNs = 2'700;
constexpr double kCopyRingStepNs = 3'700;
constexpr double kCopyCallNs = 20'000;
constexpr double kCopyDirectStepNs = 8'700;

double kind_fraction(CommKind kind) {
  switch (kind) {
    case CommKind::kAllReduce:
      return kAllReduceFraction;
    case CommKind::kAllToAll:
      return kAllToAllFraction;
    case CommKind::kSendRecv:
    case CommKind::kBroadcast:
    case CommKind::kReduce:
      return kSendFraction;
    default:
      return kGatherFraction;
  }
}

}  // namespace

CommSteps ring_steps(CommKind kind, const GroupPlacement& place) {
  const int laps = kind == CommKind::kAllReduce ? 2 : 1;
  if (kind == CommKind::kSendRecv) {
    return {1.0, place.num_nodes > 1 ? 1.0 : 0.0};
  }
  if (kind == CommKind::kAllToAll) {  // all peers at once
    return {1.0 + (place.num_nodes > 1), place.num_nodes > 1 ? 1.0 : 0.0};
  }
  return {laps * (place.num_ranks - 1.0), laps * (place.num_nodes - 1.0)};
}

double sent_part(CommKind kind, int num_ranks) {
  const double others = (num_ranks - 1.0) / num_ranks;
  switch (kind) {
    case CommKind::kAllReduce:
      return 2.0 * others;
    case CommKind::kSendRecv:
    case CommKind::kBroadcast:
    case CommKind::kReduce:
      return 1.0;
    default:
      return others;
  }
}

bool is_message(CommKind kind) {
  return kind == CommKind::kSendRecv || kind == CommKind::kBroadcast || kind == CommKind::kReduce;
}

double inside_rate(const Cluster& cluster, const CommSpec& spec) {
  const bool in_loops = !is_message(spec.kind) && spec.kind != CommKind::kAllToAll;
  const double lost = in_loops ? kRingLoopLoss / ring_steps(spec.kind, spec.placement).all : 0.0;
  return cluster.intra_node.bytes_per_s * cluster.device.stack.communication *
         kind_fraction(spec.kind) / (1.0 + lost) * 1e-9;
}

double outside_rate(const Cluster& cluster, const GroupPlacement& place) {
  return cluster.inter_node.bytes_per_s * cluster.device.stack.communication /
         place.oversubscription * kNetworkFraction * 1e-9;
}

double multicast_rate(const Cluster& cluster) {
  return cluster.intra_node.bytes_per_s * cluster.device.stack.communication *
         cluster.device.node.multicast * 1e-9;
}

double bytes_ns(const Cluster& cluster, const CommSpec& spec) {
  const GroupPlacement& place = spec.placement;
  const auto whole = static_cast<double>(spec.bytes);
  const double inside = inside_rate(cluster, spec);
  const double outside = outside_rate(cluster, place);
  const double sent = sent_part(spec.kind, place.num_ranks) * whole;
  if (place.num_nodes == 1) {
    return sent / inside;
  }
  if (spec.kind == CommKind::kAllToAll) {
    const double near = (place.fewest_per_node - 1.0) / place.num_ranks * whole;
    return std::max(near / inside, (sent - near) / outside);
  }
  const double links = spec.kind == CommKind::kSendRecv ? 1.0 : place.fewest_per_node;
  return sent / std::min(inside, links * outside);
}

double call_ns(CommKind kind) {
  return is_message(kind) ? kMessageCallNs : kCollectiveCallNs;
}

namespace {

/// Without an order of the ranks: every rank sends to its peers directly.
bool goes_to_peers(CommKind kind) {
  return kind == CommKind::kSendRecv || kind == CommKind::kAllToAll;
}

struct Latency {
  double base_ns;
  double intra_ns;
  double inter_ns;
  double rate;      ///< fraction of the bandwidth
  double least_ns;  ///< for all steps together
};

double step_ns(const CommSteps& steps, const Latency& latency) {
  return std::max(latency.least_ns, latency.base_ns +
                                        (steps.all - steps.between_nodes) * latency.intra_ns +
                                        steps.between_nodes * latency.inter_ns);
}

double faster(const CommSteps& steps, const Latency& large, const Latency& small, double bytes_ns) {
  return std::min(step_ns(steps, large) + bytes_ns / large.rate,
                  step_ns(steps, small) + bytes_ns / small.rate);
}

double ring_ns(const Cluster& cluster, const CommSpec& spec) {
  const FabricSpec& in = cluster.intra_node;
  const FabricSpec& out = cluster.inter_node;
  const Latency large{kRingBaseNs, static_cast<double>(in.ring_step_ns),
                      static_cast<double>(out.ring_step_ns), 1.0, call_ns(spec.kind)};
  const Latency small{kRingSmallBaseNs, static_cast<double>(in.ring_step_small_ns),
                      static_cast<double>(out.ring_step_small_ns), kSmallRate, kSmallCallNs};
  const CommSteps steps = ring_steps(spec.kind, spec.placement);
  return faster(steps, large, small, bytes_ns(cluster, spec));
}

/// Along a chain of the ranks of a node; twice for a sum that all get.
double tree_ns(const Cluster& cluster, const CommSpec& spec) {
  const int ways = spec.kind == CommKind::kAllReduce ? 2 : 1;
  const CommSteps steps{ways * (spec.placement.num_ranks - 1.0), 0};
  const FabricSpec& in = cluster.intra_node;
  const Latency large{kTreeBaseNs, static_cast<double>(in.tree_step_ns), 0, 1.0,
                      call_ns(spec.kind)};
  const Latency small{kTreeSmallBaseNs, static_cast<double>(in.tree_step_small_ns), 0, kSmallRate,
                      kSmallCallNs};
  return faster(steps, large, small, bytes_ns(cluster, spec));
}

/// Switches sum what all ranks of a node send them.
double multicast_ns(const Cluster& cluster, const CommSpec& spec) {
  return kCollectiveCallNs + kMulticastNs +
         static_cast<double>(spec.bytes) / multicast_rate(cluster);
}

/// Every rank writes to every other in one step (two for an all-reduce: scatter, then gather).
double direct_ns(const Cluster& cluster, const CommSpec& spec, double sent_bytes) {
  const double rounds = spec.kind == CommKind::kAllReduce ? 2.0 : 1.0;
  return kRingSmallBaseNs + rounds * static_cast<double>(cluster.intra_node.ring_step_ns) +
         sent_bytes / (cluster.intra_node.bytes_per_s * kDirectFraction * 1e-9);
}

double copy_engine_ns(const Cluster& cluster, const CommSpec& spec, double sent_bytes) {
  const double link = cluster.intra_node.bytes_per_s * 1e-9;
  const bool meets = spec.algorithm == CommAlgorithm::kCopyEngineDirect;
  const double start = meets ? kCopyCallNs : 0.0;
  if (spec.kind == CommKind::kSendRecv) {
    return start + kCopyNs + sent_bytes / (link * kCopyEngineFraction);
  }
  const double steps = spec.placement.num_ranks - 1.0;
  return start + steps * (meets ? kCopyDirectStepNs : kCopyRingStepNs) +
         sent_bytes / (link * (meets ? kCopyRotationFraction : kCopyEngineFraction));
}

}  // namespace

namespace {

/// `outside`: of the rate that the network leaves to a device.
LinkLoad between_nodes(const GroupPlacement& place, double inside, double outside) {
  return {.intra_node = inside,
          .inter_node = outside / place.oversubscription,
          .above_units = place.oversubscription > 1 ? outside : 0.0};
}

}  // namespace

LinkLoad analytic_link_load(const Cluster& cluster, const CommSpec& spec) {
  const GroupPlacement& place = spec.placement;
  if (place.num_ranks < 2) {
    return {};
  }
  if (place.num_nodes == 1) {
    return {.intra_node = 1.0};
  }
  if (place.fewest_per_node == 1 || spec.kind == CommKind::kSendRecv) {
    return between_nodes(place, 0.0, 1.0);
  }
  const double inside = inside_rate(cluster, spec);
  const double outside = outside_rate(cluster, place);
  if (spec.kind == CommKind::kAllToAll) {
    const double near_ns = (place.fewest_per_node - 1.0) / inside;
    const double far_ns = (place.num_ranks - place.fewest_per_node) / outside;
    const double longest_ns = std::max(near_ns, far_ns);
    return between_nodes(place, near_ns / longest_ns, far_ns / longest_ns);
  }
  const double rate = std::min(inside, outside * place.fewest_per_node);
  return between_nodes(place, rate / inside, rate / (outside * place.fewest_per_node));
}

double analytic_comm_ns(const Cluster& cluster, const CommSpec& spec) {
  const std::string fault = comm_fault(spec);
  check(fault.empty(), "{}", fault);
  if (spec.placement.num_ranks < 2) {
    return 0;
  }
  if (spec.placement.num_nodes > 1 && !goes_to_peers(spec.kind)) {
    return between_nodes_ns(cluster, spec);
  }
  const double sent_bytes =
      sent_part(spec.kind, spec.placement.num_ranks) * static_cast<double>(spec.bytes);
  switch (spec.algorithm) {
    case CommAlgorithm::kRing:
      return ring_ns(cluster, spec);
    case CommAlgorithm::kTree:
      return tree_ns(cluster, spec);
    case CommAlgorithm::kNvls:
      return multicast_ns(cluster, spec);
    case CommAlgorithm::kDirect:
      return direct_ns(cluster, spec, sent_bytes);
    default:
      return copy_engine_ns(cluster, spec, sent_bytes);
  }
}

}  // namespace braid
