#include "ops/collectives.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr std::string_view kEngine = "engine";
constexpr std::string_view kCopyEngine = "copy";
constexpr std::string_view kNcclCopies = "nccl_copy";

std::string_view engine_of(const OpSpec& spec) {
  const AttributeValue* const engine = spec.find_attribute(kEngine);
  const auto* const name = engine == nullptr ? nullptr : std::get_if<std::string>(engine);
  return name == nullptr ? std::string_view() : std::string_view(*name);
}

OpSpec with_engine(OpSpec spec, std::string_view engine) {
  spec = by_any_engine(std::move(spec));
  spec.attributes.push_back({std::string(kEngine), std::string(engine)});
  return spec;
}

CommCopies copies_of(std::string_view op) {
  const OpDefinition* const known = find_known_op(op);
  return known == nullptr || !known->communication ? CommCopies::kNone
                                                   : known->communication->copies;
}

bool is_engine_of(std::string_view engine, std::string_view op) {
  return (engine == kCopyEngine && copies_suffice(op)) ||
         (engine == kNcclCopies && nccl_copies_suffice(op));
}

template <class Attributes>
Attributes checked_attributes(const OpSpec& spec, const OperandChecker& operands) {
  auto attributes = attributes_of<Attributes>(spec);
  operands.require(attributes.group >= 0, "group must be an index into the program's groups");
  if constexpr (requires { attributes.by; }) {
    operands.require(
        attributes.by.engine.empty() || is_engine_of(attributes.by.engine, spec.op),
        "engine must be copy, of an op that adds nothing, or nccl_copy, of all_gather and "
        "all_to_all");
  }
  return attributes;
}

void check_root(const OpSpec& spec, const OperandChecker& operands) {
  operands.require(checked_attributes<RootAttributes>(spec, operands).root >= 0,
                   "root must be a member of the group");
}

void check_message(const OpSpec& spec, const OperandChecker& operands) {
  const auto attributes = checked_attributes<MessageAttributes>(spec, operands);
  operands.require(attributes.peer >= 0, "peer must be a member of the group");
  operands.require(attributes.channel >= 0, "channel must not be negative");
}

/// x -> y of one type.
void check_same_type(const OpSpec& spec, OperandChecker& operands, bool floating) {
  const OperandSpec& x = floating ? operands.next_floating("x", Access::kRead, rank_of(spec, 0))
                                  : operands.next("x", Access::kRead, rank_of(spec, 0));
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

void check_all_reduce(const OpSpec& spec) {
  OperandChecker operands(spec);
  checked_attributes<CollectiveAttributes>(spec, operands);
  const bool in_place = spec.operands.size() < 2 || spec.operands[0].access == Access::kReadWrite;
  if (!in_place) {
    return check_same_type(spec, operands, /*floating=*/true);
  }
  operands.next_floating("x", Access::kReadWrite, rank_of(spec, 0));
  operands.done();
}

void check_all_reduce_max(const OpSpec& spec) {
  OperandChecker operands(spec);
  checked_attributes<CollectiveAttributes>(spec, operands);
  const bool in_place = spec.operands.size() < 2 || spec.operands[0].access == Access::kReadWrite;
  const OperandSpec& x =
      operands.next("x", in_place ? Access::kReadWrite : Access::kRead, rank_of(spec, 0));
  operands.require(x.dtype == DType::kI32, "x must be i32");
  if (!in_place) {
    operands.expect("y", Access::kWrite, x.dtype, x.shape);
  }
  operands.done();
}

void check_identity(const OpSpec& spec) {
  OperandChecker operands(spec);
  checked_attributes<CollectiveAttributes>(spec, operands);
  check_same_type(spec, operands, /*floating=*/false);
}

/// [m,...] and [n*m,...] with one tail.
void check_blocks(const OperandChecker& operands, const OperandSpec& block,
                  const OperandSpec& whole) {
  operands.require(whole.dtype == block.dtype, "x and y must have one dtype");
  Shape tail = whole.shape;
  tail[0] = block.shape[0];
  operands.require(tail == block.shape, "x and y may differ in the first dimension only");
  operands.require(block.shape[0] == 0 ? whole.shape[0] == 0
                                       : whole.shape[0] > 0 && whole.shape[0] % block.shape[0] == 0,
                   "one of x and y must hold a block of the other per rank");
}

/// Any number of dimensions except zero.
int block_rank(const OpSpec& spec) {
  return std::max(1, rank_of(spec, 0));
}

void check_all_gather(const OpSpec& spec) {
  OperandChecker operands(spec);
  checked_attributes<CollectiveAttributes>(spec, operands);
  const OperandSpec& x = operands.next("x", Access::kRead, block_rank(spec));
  const OperandSpec& y = operands.next("y", Access::kWrite, block_rank(spec));
  check_blocks(operands, x, y);
  operands.done();
}

void check_reduce_scatter(const OpSpec& spec) {
  OperandChecker operands(spec);
  checked_attributes<CollectiveAttributes>(spec, operands);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, block_rank(spec));
  const OperandSpec& y = operands.next("y", Access::kWrite, block_rank(spec));
  check_blocks(operands, y, x);
  operands.done();
}

void check_all_to_all(const OpSpec& spec) {
  OperandChecker operands(spec);
  checked_attributes<CollectiveAttributes>(spec, operands);
  const OperandSpec& x = operands.next("x", Access::kRead, block_rank(spec));
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

void check_broadcast(const OpSpec& spec) {
  OperandChecker operands(spec);
  check_root(spec, operands);
  check_same_type(spec, operands, /*floating=*/false);
}

void check_reduce(const OpSpec& spec) {
  OperandChecker operands(spec);
  check_root(spec, operands);
  check_same_type(spec, operands, /*floating=*/true);
}

void check_send(const OpSpec& spec) {
  OperandChecker operands(spec);
  check_message(spec, operands);
  operands.next("x", Access::kRead, rank_of(spec, 0));
  operands.done();
}

void check_recv(const OpSpec& spec) {
  OperandChecker operands(spec);
  check_message(spec, operands);
  operands.next("y", Access::kWrite, rank_of(spec, 0));
  operands.done();
}

void check_ring_shift(const OpSpec& spec) {
  OperandChecker operands(spec);
  checked_attributes<RingShiftAttributes>(spec, operands);
  check_same_type(spec, operands, /*floating=*/false);
}

/// comm_bytes is the size of the larger operand: see OpCost.
OpCost communication_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.comm_bytes = std::max(cost.bytes_read, cost.bytes_written);
  return cost;
}

/// d_x = dual(d_y): `attributes` are those of the dual.
void dual_backward(BackwardBuilder& builder, const Node& node, std::vector<Attribute> attributes) {
  const ValueId x = node.operands[0];
  const std::optional<ValueId> dy = builder.grad_of(node.operands[1]);
  if (!dy || builder.value(x).kind == ValueKind::kInput) {
    return;
  }
  const ValueId dx = builder.new_grad(x);
  builder.add_node(node, std::string(find_op(node.spec.op).dual), std::move(attributes),
                   std::array{Operand{*dy}, Operand{dx, Access::kWrite}}, Phase::kComm);
  builder.add_grad(node, x, dx);
}

/// For an op whose dual has the same attributes.
void backward_of_dual(BackwardBuilder& builder, const Node& node) {
  dual_backward(builder, node, node.spec.attributes);
}

void all_reduce_backward(BackwardBuilder& builder, const Node& node) {
  check(node.operands.size() == 2, "op all_reduce at {}: in place it has no backward", node.site);
  if (const std::optional<ValueId> dy = builder.grad_of(node.operands[1])) {
    builder.add_grad(node, node.operands[0], *dy);
  }
}

void ring_shift_backward(BackwardBuilder& builder, const Node& node) {
  auto attributes = attributes_of<RingShiftAttributes>(node.spec);
  attributes.shift = -attributes.shift;
  dual_backward(builder, node, to_attributes(attributes));
}

std::vector<Attribute> reply_attributes(const Node& node) {
  auto attributes = attributes_of<MessageAttributes>(node.spec);
  attributes.channel ^= 1;
  return to_attributes(attributes);
}

// Only the receiver knows whether the value leads to the loss, so both ends always exchange the
// gradient.
void send_backward(BackwardBuilder& builder, const Node& node) {
  const ValueId x = node.operands[0];
  const ValueId dx = builder.new_grad(x);
  builder.add_node(node, "recv", reply_attributes(node), std::array{Operand{dx, Access::kWrite}},
                   Phase::kComm);
  builder.add_grad(node, x, dx);
}

void recv_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[0]);
  check(dy.has_value(), "op recv at {}: what it receives does not lead to the loss", node.site);
  builder.add_node(node, "send", reply_attributes(node), std::array{Operand{*dy}}, Phase::kComm);
}

/// Adds x -> y with y of another first dimension. What comes of weights alone stays so.
ValueId add_collective(GraphBuilder& builder, std::string op, std::vector<Attribute> attributes,
                       ValueId x, std::optional<int64_t> rows, std::string_view site) {
  Value y = builder.value(x);
  if (rows) {
    y.shape[0] = *rows;
  }
  y.name = builder.scoped(site);
  y.kind = y.kind == ValueKind::kOfWeights ? y.kind : ValueKind::kActivation;
  y.frozen = false;
  const ValueId result = builder.add_value(std::move(y));
  builder.add_node(std::move(op), std::move(attributes),
                   std::array{Operand{x}, Operand{result, Access::kWrite}}, site);
  return result;
}

std::vector<Attribute> in_group(GraphBuilder& builder, std::string_view group) {
  return to_attributes(CollectiveAttributes{.group = builder.group(group)});
}

int64_t block_rows(const GraphBuilder& builder, ValueId x, int64_t num_ranks) {
  const Value& value = builder.value(x);
  check(num_ranks > 0 && value.shape.rank() > 0 && value.shape[0] % num_ranks == 0,
        "{} {} cannot be split over {} ranks", value.name, to_string(value.shape), num_ranks);
  return value.shape[0] / num_ranks;
}

}  // namespace

const OpDefinition kAllReduceOp{
    .name = "all_reduce",
    .summary = "Sum over the ranks of a group, in place or to y.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_all_reduce,
    .cost = communication_cost,
    .backward = all_reduce_backward,
    .recompute = Recompute::kFull,
    .communication = Communication{.op = CommOp::kAllReduce, .sums = true, .waits_for_all = true},
    .dual = "identity",
};

const OpDefinition kAllReduceMaxOp{
    .name = "all_reduce_max",
    .summary = "The largest x of the ranks of a group, element by element, in place or to y.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_all_reduce_max,
    .cost = communication_cost,
    .recompute = Recompute::kFull,
    .communication =
        Communication{.op = CommOp::kAllReduceMax, .sums = true, .waits_for_all = true},
};

const OpDefinition kIdentityOp{
    .name = "identity",
    .summary = "Copies x; its gradient is summed over the ranks of a group.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_identity,
    .cost = elementwise_cost<0>,
    .backward = backward_of_dual,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .values = ValueRule::kMoved,
    .dual = "all_reduce",
};

const OpDefinition kAllGatherOp{
    .name = "all_gather",
    .summary = "The blocks of all ranks of a group, in group order.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_all_gather,
    .cost = communication_cost,
    .backward = backward_of_dual,
    .recompute = Recompute::kNorms,  // otherwise a gathered norm would be kept, but the norm itself
                                     // not
    .communication = Communication{.op = CommOp::kAllGather,
                                   .shape = CommShape::kGather,
                                   .waits_for_all = true,
                                   .copies = CommCopies::kCopyEngineOrNccl},
    .dual = "reduce_scatter",
};

const OpDefinition kReduceScatterOp{
    .name = "reduce_scatter",
    .summary = "Sum over the ranks of a group; each gets the block of its place in the group.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_reduce_scatter,
    .cost = communication_cost,
    .backward = backward_of_dual,
    .recompute = Recompute::kFull,
    .communication = Communication{.op = CommOp::kReduceScatter,
                                   .shape = CommShape::kScatter,
                                   .sums = true,
                                   .waits_for_all = true},
    .dual = "all_gather",
};

const OpDefinition kAllToAllOp{
    .name = "all_to_all",
    .summary = "Block j of each rank of a group goes to rank j, and lies there in group order.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_all_to_all,
    .cost = communication_cost,
    .backward = backward_of_dual,
    .recompute = Recompute::kFull,
    .communication = Communication{.op = CommOp::kAllToAll,
                                   .shape = CommShape::kBlocks,
                                   .waits_for_all = true,
                                   .copies = CommCopies::kCopyEngineOrNccl},
    .dual = "all_to_all",
};

const OpDefinition kBroadcastOp{
    .name = "broadcast",
    .summary = "All ranks of a group get the root's x.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_broadcast,
    .cost = communication_cost,
    .backward = backward_of_dual,
    .recompute = Recompute::kFull,
    .communication = Communication{.op = CommOp::kBroadcast},
    .dual = "reduce",
};

const OpDefinition kReduceOp{
    .name = "reduce",
    .summary = "Sum over the ranks of a group on the root, zeros on the others.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_reduce,
    .cost = communication_cost,
    .backward = backward_of_dual,
    .recompute = Recompute::kFull,
    .communication = Communication{.op = CommOp::kReduce, .sums = true},
    .dual = "broadcast",
};

const OpDefinition kSendOp{
    .name = "send",
    .summary = "Sends x to another rank of a group, and ends when that rank has it.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_send,
    .cost = communication_cost,
    .backward = send_backward,
    .recompute = Recompute::kNone,  // the other end does not repeat it
    .communication =
        Communication{
            .op = CommOp::kSend, .shape = CommShape::kMessage, .copies = CommCopies::kCopyEngine},
    .dual = "recv",
};

const OpDefinition kRecvOp{
    .name = "recv",
    .summary = "Receives y from another rank of a group.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_recv,
    .cost = communication_cost,
    .backward = recv_backward,
    .recompute = Recompute::kNone,
    .communication =
        Communication{
            .op = CommOp::kRecv, .shape = CommShape::kMessage, .copies = CommCopies::kCopyEngine},
    .dual = "send",
};

const OpDefinition kRingShiftOp{
    .name = "ring_shift",
    .summary = "Sends x to the rank `shift` places on in the ring of a group, receives y likewise.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_ring_shift,
    .cost = communication_cost,
    .backward = ring_shift_backward,
    .recompute = Recompute::kFull,
    .communication = Communication{.op = CommOp::kRingShift, .copies = CommCopies::kCopyEngine},
    .dual = "ring_shift",
};

bool copies_suffice(std::string_view op) {
  return copies_of(op) != CommCopies::kNone;
}

bool nccl_copies_suffice(std::string_view op) {
  return copies_of(op) == CommCopies::kCopyEngineOrNccl;
}

bool is_by_copy_engine(const OpSpec& spec) {
  return engine_of(spec) == kCopyEngine;
}

bool is_by_nccl_copies(const OpSpec& spec) {
  return engine_of(spec) == kNcclCopies;
}

bool needs_no_sm(const OpSpec& spec) {
  return is_by_copy_engine(spec) || is_by_nccl_copies(spec);
}

OpSpec by_copy_engine(OpSpec spec) {
  check(copies_suffice(spec.op), "copy engines cannot do op {}", spec.op);
  return with_engine(std::move(spec), kCopyEngine);
}

OpSpec by_nccl_copies(OpSpec spec) {
  check(nccl_copies_suffice(spec.op), "NCCL has no copies for op {}", spec.op);
  return with_engine(std::move(spec), kNcclCopies);
}

OpSpec by_any_engine(OpSpec spec) {
  std::erase_if(spec.attributes, [](const Attribute& it) { return it.name == kEngine; });
  return spec;
}

ValueId all_reduce(GraphBuilder& builder, ValueId x, std::string_view group,
                   std::string_view site) {
  return add_collective(builder, "all_reduce", in_group(builder, group), x, std::nullopt, site);
}

ValueId identity(GraphBuilder& builder, ValueId x, std::string_view group, std::string_view site) {
  return add_collective(builder, "identity", in_group(builder, group), x, std::nullopt, site);
}

ValueId all_gather(GraphBuilder& builder, ValueId x, std::string_view group, int64_t num_ranks,
                   std::string_view site) {
  const int64_t rows = builder.value(x).shape[0] * num_ranks;
  return add_collective(builder, "all_gather", in_group(builder, group), x, rows, site);
}

ValueId reduce_scatter(GraphBuilder& builder, ValueId x, std::string_view group, int64_t num_ranks,
                       std::string_view site) {
  const int64_t rows = block_rows(builder, x, num_ranks);
  return add_collective(builder, "reduce_scatter", in_group(builder, group), x, rows, site);
}

ValueId all_to_all(GraphBuilder& builder, ValueId x, std::string_view group, int64_t num_ranks,
                   std::string_view site) {
  block_rows(builder, x, num_ranks);
  return add_collective(builder, "all_to_all", in_group(builder, group), x, std::nullopt, site);
}

ValueId broadcast(GraphBuilder& builder, ValueId x, std::string_view group, int64_t root,
                  std::string_view site) {
  const RootAttributes attributes{.group = builder.group(group), .root = root};
  return add_collective(builder, "broadcast", to_attributes(attributes), x, std::nullopt, site);
}

ValueId reduce(GraphBuilder& builder, ValueId x, std::string_view group, int64_t root,
               std::string_view site) {
  const RootAttributes attributes{.group = builder.group(group), .root = root};
  return add_collective(builder, "reduce", to_attributes(attributes), x, std::nullopt, site);
}

ValueId ring_shift(GraphBuilder& builder, ValueId x, std::string_view group, int64_t shift,
                   std::string_view site) {
  const RingShiftAttributes attributes{.group = builder.group(group), .shift = shift};
  return add_collective(builder, "ring_shift", to_attributes(attributes), x, std::nullopt, site);
}

void send(GraphBuilder& builder, ValueId x, const MessageEnd& end, std::string_view site) {
  const MessageAttributes attributes{
      .group = builder.group(end.group), .peer = end.peer, .channel = end.channel};
  builder.add_node("send", to_attributes(attributes), std::array{Operand{x}}, site);
}

ValueId recv(GraphBuilder& builder, DType dtype, const Shape& shape, const MessageEnd& end,
             std::string_view site) {
  const MessageAttributes attributes{
      .group = builder.group(end.group), .peer = end.peer, .channel = end.channel};
  const ValueId y = builder.add_activation(site, dtype, shape);
  builder.add_node("recv", to_attributes(attributes), std::array{Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace braid
