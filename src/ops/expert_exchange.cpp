#include "ops/expert_exchange.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

ExpertExchangeAttributes checked_attributes(const OpSpec& spec, const OperandChecker& operands) {
  const auto attributes = attributes_of<ExpertExchangeAttributes>(spec);
  operands.require(attributes.group >= 0, "group must be an index into the program's groups");
  operands.require(attributes.experts > 0 && attributes.copies > 0,
                   "experts and copies must be at least 1");
  operands.require(attributes.equal.equal_rows >= 0, "equal_rows must not be negative");
  return attributes;
}

int rank_of_rows(const OpSpec& spec) {
  return spec.operands.empty() ? 1 : std::max(1, spec.operands[0].shape.rank());
}

/// The scales of rows of x, or of y, if there are any.
void check_scales(OperandChecker& operands, const ExpertExchangeAttributes& attributes,
                  std::string_view name, Access access, const Shape& rows) {
  if (attributes.scales.has_scales) {
    operands.require(rows.rank() == 2 && rows[1] % GroupedColumns::kBlock == 0,
                     "rows with scales must have whole blocks of 128");
    operands.expect(name, access, QuantizeGroupedAttributes::scales().dtype(),
                    scales_beside_rows(rows));
  }
}

/// x, weights, scales, offsets_of_all, y, y_weights, y_scales, without offsets.
void check_rows(const OpSpec& spec, OperandChecker& operands,
                const ExpertExchangeAttributes& attributes) {
  const OperandSpec& x = operands.next_floating("x", Access::kRead, rank_of_rows(spec));
  operands.require(is_fp8(x.dtype) == attributes.scales.has_scales,
                   "rows of FP8, and only those, have scales");
  const DType wide = accumulator_dtype(x.dtype);
  if (attributes.has_weights) {
    operands.expect("weights", Access::kRead, wide, {x.shape[0]});
  }
  check_scales(operands, attributes, "scales", Access::kRead, x.shape);
  const OperandSpec& offsets = operands.next("offsets_of_all", Access::kRead, 1);
  operands.require(offsets.dtype == DType::kI32 && offsets.shape[0] % (attributes.experts + 1) == 0,
                   "offsets_of_all must be i32, E + 1 of each member");
  const OperandSpec& y = operands.next("y", Access::kWrite, rank_of_rows(spec));
  Shape row = y.shape;
  row[0] = x.shape[0];
  operands.require(y.dtype == x.dtype && row == x.shape && y.shape[0] > 0 && x.shape[0] > 0,
                   "y must have rows like x");
  if (attributes.has_weights) {
    operands.expect("y_weights", Access::kWrite, wide, {y.shape[0]});
  }
  check_scales(operands, attributes, "y_scales", Access::kWrite, y.shape);
}

/// L, or 0 if members do not hold whole experts.
int64_t local_experts(const OpSpec& spec, const ExpertExchangeAttributes& attributes) {
  const auto at = static_cast<size_t>(ExpertExchangeOperands(spec).offsets_of_all);
  const int64_t members = spec.operands[at].shape[0] / (attributes.experts + 1);
  const int64_t all = attributes.experts * attributes.copies;
  return members > 0 && members % attributes.copies == 0 && all % members == 0 ? all / members : 0;
}

void check_dispatch_rows(const OpSpec& spec) {
  OperandChecker operands(spec);
  const auto attributes = checked_attributes(spec, operands);
  check_rows(spec, operands, attributes);
  operands.require(attributes.has_weights || !attributes.watch.watch,
                   "rows without weights are not counted");
  if (attributes.has_weights) {
    const int64_t local = local_experts(spec, attributes);
    operands.require(local > 0, "members must hold equal numbers of experts");
    operands.expect("offsets", Access::kWrite, DType::kI32, {local + 1});
  }
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(RoomTally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

void check_combine_rows(const OpSpec& spec) {
  OperandChecker operands(spec);
  const auto attributes = checked_attributes(spec, operands);
  operands.require(!attributes.watch.watch, "only dispatch_rows counts rows");
  operands.require(!attributes.scales.has_scales, "only dispatch_rows has FP8 rows");
  check_rows(spec, operands, attributes);
  operands.done();
}

/// With equal loads a member has as many rows of experts as it has of its tokens, times `copies`.
/// The owner's side is exact: x of dispatch_rows, y of combine_rows.
OpCost exchange_cost(const OpSpec& spec, std::initializer_list<int> owned) {
  double bytes = 0;
  for (const int operand : owned) {
    bytes += operand < 0 ? 0 : size_bytes(spec.operands[static_cast<size_t>(operand)]);
  }
  const auto copies = attributes_of<ExpertExchangeAttributes>(spec).copies;
  const double moved = bytes * static_cast<double>(copies);
  return {.bytes_read = moved, .bytes_written = moved, .comm_bytes = moved};
}

OpCost dispatch_cost(const OpSpec& spec) {
  const ExpertExchangeOperands at(spec);
  return exchange_cost(spec, {0, at.weights, at.scales});
}

OpCost combine_cost(const OpSpec& spec) {
  const ExpertExchangeOperands at(spec);
  return exchange_cost(spec, {at.y, at.y_weights});
}

/// Rows and weights were dispatched together, and their gradients come back together.
void dispatch_rows_backward(BackwardBuilder& builder, const Node& node) {
  check(attributes_of<ExpertExchangeAttributes>(node.spec).has_weights,
        "op dispatch_rows at {}: without weights it is a backward", node.site);
  const std::optional<ValueId> dy = builder.grad_of(node.operands[3]);
  const std::optional<ValueId> d_weights = builder.grad_of(node.operands[4]);
  if (!dy || !d_weights) {
    check(!dy && !d_weights, "op dispatch_rows at {}: one of rows and weights has no gradient",
          node.site);
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId weights = node.operands[1];
  const ValueId dx = builder.new_grad(x);
  const ValueId dw = builder.new_grad(weights);
  builder.add_node(node, "combine_rows", without_tally(node.spec).attributes,
                   std::array{Operand{*dy}, Operand{*d_weights}, Operand{node.operands[2]},
                              Operand{dx, Access::kWrite}, Operand{dw, Access::kWrite}},
                   Phase::kComm);
  builder.add_grad(node, x, dx);
  builder.add_grad(node, weights, dw);
}

void combine_rows_backward(BackwardBuilder& builder, const Node& node) {
  check(!attributes_of<ExpertExchangeAttributes>(node.spec).has_weights,
        "op combine_rows at {}: with weights it is a backward", node.site);
  const std::optional<ValueId> dy = builder.grad_of(node.operands[2]);
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId dx = builder.new_grad(x);
  builder.add_node(node, "dispatch_rows", node.spec.attributes,
                   std::array{Operand{*dy}, Operand{node.operands[1]}, Operand{dx, Access::kWrite}},
                   Phase::kComm);
  builder.add_grad(node, x, dx);
}

/// Offsets of all members, one behind the other.
IntegerNeed offsets_of_all_needs(const OpSpec& spec, size_t operand) {
  const auto attributes = attributes_of<ExpertExchangeAttributes>(spec);
  const bool is_dispatch = spec.op == kDispatchRowsOp.name;
  const size_t owned = is_dispatch ? 0 : operand + 1;
  return {.rule = IntegerRule::kOffsetsOfAll,
          .limit = spec.operands[owned].shape[0],
          .run = attributes.experts + 1};
}

std::vector<Attribute> attributes_of_group(GraphBuilder& builder, const ExpertGroup& group,
                                           bool has_weights, bool watch) {
  return to_attributes(ExpertExchangeAttributes{.group = builder.group(group.name),
                                                .experts = group.experts,
                                                .copies = group.copies,
                                                .has_weights = has_weights,
                                                .drops = group.drops,
                                                .equal = {group.equal_rows},
                                                .watch = {watch}});
}

}  // namespace

ExpertExchangeOperands::ExpertExchangeOperands(const OpSpec& spec) {
  const auto attributes = attributes_of<ExpertExchangeAttributes>(spec);
  const bool dispatches = spec.op == kDispatchRowsOp.name;
  int next = 1;
  const auto place = [&](bool exists) { return exists ? next++ : -1; };
  weights = place(attributes.has_weights);
  scales = place(attributes.scales.has_scales);
  offsets_of_all = place(true);
  y = place(true);
  y_weights = place(attributes.has_weights);
  y_scales = place(attributes.scales.has_scales);
  offsets = place(attributes.has_weights && dispatches);
  tally = place(attributes.watch.watch);
}

const OpDefinition kDispatchRowsOp{
    .name = "dispatch_rows",
    .summary = "Rows and weights go to the ranks that hold their experts.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_dispatch_rows,
    .cost = dispatch_cost,
    .backward = dispatch_rows_backward,
    .recompute = Recompute::kFull,
    .communication =
        Communication{
            .op = CommOp::kDispatchRows, .shape = CommShape::kRows, .waits_for_all = true},
    .dual = "combine_rows",
    .integers = offsets_of_all_needs,
    .tally = TallyKind::kRowRoom,
};

const OpDefinition kCombineRowsOp{
    .name = "combine_rows",
    .summary = "Rows come back from the ranks that hold their experts.",
    .op_class = OpClass::kCommunication,
    .family = OpFamily::kCommunication,
    .kind = OpKind::kCommunication,
    .check = check_combine_rows,
    .cost = combine_cost,
    .backward = combine_rows_backward,
    .recompute = Recompute::kFull,
    .communication =
        Communication{.op = CommOp::kCombineRows, .shape = CommShape::kRows, .waits_for_all = true},
    .dual = "dispatch_rows",
    .integers = offsets_of_all_needs,
};

namespace {

/// Of the exchanges on streams of these kinds, 0 without any.
int most_exchange_sms(const Program& program, std::initializer_list<StreamKind> kinds) {
  int most = 0;
  for (const Task& task : program.tasks) {
    const StreamKind kind = program.streams[task.stream.index()].kind;
    if (std::ranges::find(kinds, kind) != kinds.end() && exchanges_rows(program.spec(task))) {
      const std::optional<GroupId> group = group_of(program, program.spec(task));
      check(group.has_value(), "an exchange of rows in no group of program {}", program.name);
      most = std::max(most, row_exchange_sms(program.groups[group->index()]));
    }
  }
  return most;
}

}  // namespace

int row_exchange_sms(const Group& group) {
  return group.max_sms > 0 ? group.max_sms : kRowExchangeSms;
}

int row_exchange_sms(const Program& program) {
  return most_exchange_sms(program, {StreamKind::kCompute, StreamKind::kComm});
}

LeftSms left_sms(std::span<const Program> programs) {
  LeftSms left;
  for (const Program& program : programs) {
    left.to_exchanges =
        std::max(left.to_exchanges, most_exchange_sms(program, {StreamKind::kComm}));
    for (const Stream& stream : program.streams) {
      left.by_all = std::max(left.by_all, stream.left_sms);
    }
  }
  return left;
}

bool exchanges_rows(const OpSpec& spec) {
  return communicates_as(spec, CommOp::kDispatchRows) ||
         communicates_as(spec, CommOp::kCombineRows);
}

DispatchedRows add_dispatched_rows(GraphBuilder& builder, const Value& x, DType weights,
                                   const ExpertGroup& group, std::string_view site) {
  Shape received = x.shape;
  received[0] = group.max_rows;
  const auto add = [&](std::string_view suffix, DType dtype, const Shape& shape) {
    return builder.add_activation(fmt::format("{}{}", site, suffix), dtype, shape);
  };
  return {.x = add("", x.dtype, received),
          .weights = add(".weights", weights, {group.max_rows}),
          .offsets = add(".offsets", DType::kI32, {group.local_experts() + 1})};
}

DispatchedRows dispatch_rows(GraphBuilder& builder, const RowsToDispatch& rows,
                             const ExpertGroup& group, std::optional<ValueId> tally,
                             std::string_view site) {
  const DispatchedRows result = add_dispatched_rows(builder, Value(builder.value(rows.x)),
                                                    builder.value(rows.weights).dtype, group, site);
  std::vector<Operand> operands = {Operand{rows.x},
                                   Operand{rows.weights},
                                   Operand{rows.offsets_of_all},
                                   Operand{result.x, Access::kWrite},
                                   Operand{result.weights, Access::kWrite},
                                   Operand{result.offsets, Access::kWrite}};
  if (tally) {
    operands.push_back({*tally, Access::kReadWrite});
  }
  builder.add_node("dispatch_rows", attributes_of_group(builder, group, true, tally.has_value()),
                   operands, site);
  return result;
}

ValueId combine_rows(GraphBuilder& builder, ValueId x, ValueId offsets_of_all, int64_t num_rows,
                     const ExpertGroup& group, std::string_view site) {
  Value y = builder.value(x);
  y.shape[0] = num_rows;
  const ValueId result = builder.add_activation(site, y.dtype, y.shape);
  builder.add_node("combine_rows", attributes_of_group(builder, group, false, /*watch=*/false),
                   std::array{Operand{x}, Operand{offsets_of_all}, Operand{result, Access::kWrite}},
                   site);
  return result;
}

}  // namespace braid
