#include "sim/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "comm/comm_call.h"
#include "ops/collectives.h"
#include "ops/expert_exchange.h"
#include "ops/op.h"
#include "sim/contention.h"

namespace braid {
namespace {

constexpr std::array<std::string_view, kNumCommAlgorithms> kAlgorithmNames = {
    "ring", "tree", "direct", "copy_engine_ring", "copy_engine_direct", "nvls", "nvls_tree", "pat"};

constexpr CommKind kind_of(CommOp op) {
  switch (op) {
    case CommOp::kAllReduce:
    case CommOp::kAllReduceMax:
      return CommKind::kAllReduce;
    case CommOp::kAllGather:
      return CommKind::kAllGather;
    case CommOp::kReduceScatter:
      return CommKind::kReduceScatter;
    case CommOp::kAllToAll:
    case CommOp::kDispatchRows:
    case CommOp::kCombineRows:
      return CommKind::kAllToAll;
    case CommOp::kBroadcast:
      return CommKind::kBroadcast;
    case CommOp::kReduce:
      return CommKind::kReduce;
    case CommOp::kRingShift:
    case CommOp::kSend:
    case CommOp::kRecv:
      break;
  }
  return CommKind::kSendRecv;
}

/// The ops of each kind, whose names the kinds have; for kSendRecv the last one, and for kAllReduce
/// the sum.
std::array<CommOp, kNumCommKinds> ops_by_kind() {
  std::array<CommOp, kNumCommKinds> ops = {};
  for (size_t i = 0; i < kNumCommOps; ++i) {
    const auto op = static_cast<CommOp>(i);
    if (op != CommOp::kAllReduceMax && op != CommOp::kDispatchRows && op != CommOp::kCombineRows) {
      ops[static_cast<size_t>(kind_of(op))] = op;
    }
  }
  return ops;
}

const Communication& communication_of(CommKind kind) {
  static const std::array<CommOp, kNumCommKinds> kOps = ops_by_kind();
  return *find_op(kOps[static_cast<size_t>(kind)]).communication;
}

int64_t operand_size_bytes(const OperandSpec& operand) {
  return operand.shape.num_elems() * static_cast<int64_t>(dtype_bytes(operand.dtype));
}

/// Bytes of the whole buffer. A gather or a scatter has parts and a whole: the largest operand is
/// the whole.
int64_t whole_bytes(const OpSpec& spec) {
  const Communication* const communication = braid::communication_of(spec);
  if (communication != nullptr && communication->shape == CommShape::kRows) {
    return std::llround(spec_cost(spec).comm_bytes);
  }
  int64_t bytes = 0;
  for (const OperandSpec& operand : spec.operands) {
    bytes = std::max(bytes, operand_size_bytes(operand));
  }
  return bytes;
}

/// The place of the ranks that take part in a communication: both ends of a message, otherwise the
/// whole group.
GroupPlacement place_of(const Cluster& cluster, const OpSpec& spec, int rank,
                        std::span<const int> group_ranks) {
  const AttributeValue* peer = spec.find_attribute("peer");
  if (peer == nullptr) {
    return place_group(cluster, group_ranks);
  }
  const auto member = static_cast<size_t>(std::get<int64_t>(*peer));
  check(member < group_ranks.size(), "op {} of rank {} has the peer {} of {}", spec.op, rank,
        member, group_ranks.size());
  return place_group(cluster, std::array{rank, group_ranks[member]});
}

/// Every rank pushes to all others, one after the other.
CommChoice copied(const CostModel& model, CommKind kind, const GroupPlacement& place,
                  int64_t bytes) {
  const CommSpec spec{.kind = kind,
                      .algorithm = CommAlgorithm::kCopyEngineDirect,
                      .placement = place,
                      .bytes = bytes};
  return {spec, model.comm_cost(spec)};
}

/// Why NCCL lacks one of its newer algorithms for the spec; empty if it has it.
std::string library_fault(const CommSpec& spec) {
  const GroupPlacement& place = spec.placement;
  const bool is_nvls = spec.algorithm == CommAlgorithm::kNvls;
  if (is_nvls || spec.algorithm == CommAlgorithm::kNvlsTree) {
    if (spec.kind != CommKind::kAllReduce || place.fewest_per_node < 2 ||
        is_nvls != (place.num_nodes == 1)) {
      return fmt::format("algorithm {} is for all_reduce of 2 and more ranks of each node, {}",
                         comm_algorithm_name(spec.algorithm),
                         is_nvls ? "on one node" : "on several nodes");
    }
  }
  const bool is_gather = spec.kind == CommKind::kAllGather || spec.kind == CommKind::kReduceScatter;
  if (spec.algorithm == CommAlgorithm::kPat &&
      (!is_gather || place.num_nodes < 2 || place.num_nodes != place.num_ranks)) {
    return "algorithm pat is for all_gather and reduce_scatter of one rank on each node";
  }
  return "";
}

/// The time of this spec's call on its links, as in the executor.
LinkTime link_time_of(const LinkOptions& links, const OpSpec& spec, const Group& group) {
  const std::vector<std::byte*> no_addresses(spec.operands.size());
  return link_time(links, make_comm_call(spec, group, no_addresses, ""));
}

}  // namespace

bool has_copy_engines(const CostModel& model, const GroupPlacement& place) {
  return model.links() == nullptr && place.num_nodes == 1;
}

int64_t round_cost_ns(double ns) {
  return std::llround(std::clamp(ns, 0.0, static_cast<double>(kMaxCostNs)));
}

std::string_view cost_source_name(CostSource source) {
  constexpr std::array<std::string_view, kNumCostSources> kNames = {"measured", "interpolated",
                                                                    "extrapolated", "analytic"};
  return kNames[static_cast<size_t>(source)];
}

std::string_view comm_kind_name(CommKind kind) {
  return kind == CommKind::kSendRecv ? "send_recv" : find_op(communication_of(kind).op).name;
}

std::string_view comm_algorithm_name(CommAlgorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}

std::optional<CommKind> parse_comm_kind(std::string_view name) {
  for (size_t i = 0; i < kNumCommKinds; ++i) {
    const auto kind = static_cast<CommKind>(i);
    if (comm_kind_name(kind) == name) {
      return kind;
    }
  }
  return std::nullopt;
}

std::optional<CommAlgorithm> parse_comm_algorithm(std::string_view name) {
  const auto* const found = std::ranges::find(kAlgorithmNames, name);
  return found == kAlgorithmNames.end()
             ? std::nullopt
             : std::optional(static_cast<CommAlgorithm>(found - kAlgorithmNames.begin()));
}

bool uses_copy_engine(CommAlgorithm algorithm) {
  return algorithm == CommAlgorithm::kCopyEngineRing ||
         algorithm == CommAlgorithm::kCopyEngineDirect;
}

std::string comm_fault(const CommSpec& spec) {
  if (spec.bytes < 0) {
    return fmt::format("{} bytes cannot be communicated", spec.bytes);
  }
  if (uses_copy_engine(spec.algorithm) && communication_of(spec.kind).sums) {
    return fmt::format("copy engines cannot add, as {} needs", comm_kind_name(spec.kind));
  }
  const bool inside_a_node =
      spec.algorithm == CommAlgorithm::kDirect || uses_copy_engine(spec.algorithm);
  if (inside_a_node && spec.placement.num_nodes > 1) {
    return fmt::format("algorithm {} reaches inside a node only, and the group is on {}",
                       comm_algorithm_name(spec.algorithm), spec.placement.num_nodes);
  }
  const bool has_tree = spec.kind == CommKind::kAllReduce || spec.kind == CommKind::kReduce ||
                        spec.kind == CommKind::kBroadcast;
  if (spec.algorithm == CommAlgorithm::kTree && !has_tree) {
    return fmt::format("there is no tree for {}", comm_kind_name(spec.kind));
  }
  return library_fault(spec);
}

bool has_algorithm(const Cluster& cluster, const CommSpec& spec) {
  const bool sums_in_switches =
      spec.algorithm == CommAlgorithm::kNvls || spec.algorithm == CommAlgorithm::kNvlsTree;
  return comm_fault(spec).empty() && (!sums_in_switches || cluster.device.node.multicast > 0);
}

CommChoice cheapest_algorithm(const CostModel& model, CommKind kind,
                              const GroupPlacement& placement, int64_t bytes) {
  const CommSpec ring{
      .kind = kind, .algorithm = CommAlgorithm::kRing, .placement = placement, .bytes = bytes};
  CommChoice best{ring, model.comm_cost(ring)};
  for (const CommAlgorithm algorithm : {CommAlgorithm::kTree, CommAlgorithm::kNvls,
                                        CommAlgorithm::kNvlsTree, CommAlgorithm::kPat}) {
    CommSpec other = ring;
    other.algorithm = algorithm;
    if (has_algorithm(model.cluster(), other)) {
      const Cost cost = model.comm_cost(other);
      best = cost.ns < best.cost.ns ? CommChoice{other, cost} : best;
    }
  }
  return best;
}

Cost cheapest_comm(const CostModel& model, CommKind kind, const GroupPlacement& placement,
                   int64_t bytes) {
  return cheapest_algorithm(model, kind, placement, bytes).cost;
}

ProgramComm comm_of(const CostModel& model, const OpSpec& spec, int rank, const Group& group) {
  const std::optional<CommKind> kind = comm_kind_of(spec);
  check(kind.has_value(), "op {} does not communicate", spec.op);
  const GroupPlacement place = place_of(model.cluster(), spec, rank, group.ranks);
  const CommChoice choice = has_copy_engines(model, place) && needs_no_sm(spec)
                                ? copied(model, *kind, place, whole_bytes(spec))
                                : cheapest_algorithm(model, *kind, place, whole_bytes(spec));
  const double slowdown = exchanges_rows(spec) ? row_exchange_slowdown(row_exchange_sms(group))
                                               : slowdown_by_sms(model, choice.spec, group.max_sms);
  const Cost cost = slowed(model, choice, slowdown);
  ProgramComm comm{
      .spec = choice.spec, .slowdown = slowdown, .cost = cost, .own_cost = cost, .link = {}};
  if (const LinkOptions* links = model.links()) {
    comm.link = link_time_of(*links, spec, group);
    comm.cost.ns = std::min(kMaxCostNs, std::max(comm.cost.ns, comm.link.alone_ns()));
  }
  return comm;
}

std::optional<CommKind> comm_kind_of(const OpSpec& spec) {
  const std::optional<Communication>& communication = find_op(spec.op).communication;
  return communication ? std::optional(kind_of(communication->op)) : std::nullopt;
}

Cost program_task_cost(const CostModel& model, const Program& program, TaskId task) {
  const OpSpec& spec = program.spec(program.tasks.at(task.index()));
  if (!comm_kind_of(spec)) {
    return model.task_cost(spec);
  }
  const std::optional<GroupId> group = group_of(program, spec);
  check(group.has_value(), "op {} communicates in no group of program {}", spec.op, program.name);
  return comm_of(model, spec, program.rank, program.groups[group->index()]).cost;
}

}  // namespace braid
