#include "ops/expert_rows.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/expert_offsets.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"

namespace braid {
namespace {

/// i32, and of rank `rank`.
const OperandSpec& next_integers(OperandChecker& operands, std::string_view name, Access access,
                                 int rank) {
  const OperandSpec& found = operands.next(name, access, rank);
  operands.require(found.dtype == DType::kI32, "indices must be i32");
  return found;
}

void check_sort_rows(const OpSpec& spec) {
  const auto attributes = attributes_of<SortRowsAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& experts = next_integers(operands, "experts", Access::kRead, 2);
  operands.expect("row_of", Access::kWrite, DType::kI32, experts.shape);
  const OperandSpec& pair_of = next_integers(operands, "pair_of", Access::kWrite, 1);
  operands.require(attributes.room.is_limited || pair_of.shape[0] == experts.shape.num_elems(),
                   "pair_of must have a row for each pair");
  operands.require(!attributes.room.is_limited || !attributes.watch.watch,
                   "rows of limited room are not counted");
  const OperandSpec& offsets = next_integers(operands, "offsets", Access::kWrite, 1);
  operands.require(offsets.shape[0] >= 2, "offsets must be [E+1] of at least one expert");
  const int64_t num_experts = offsets.shape[0] - 1;
  operands.expect("counts", Access::kWrite, DType::kF32, {num_experts});
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(num_experts);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

bool drops_rows(const OpSpec& spec) {
  return attributes_of<MovedRowsAttributes>(spec).dropped.drops;
}

PartialMaps partial_maps(const OpSpec& spec) {
  return attributes_of<MovedRowsAttributes>(spec).partial;
}

void check_partial(OperandChecker& operands, const OpSpec& spec, int64_t num_rows) {
  const PartialMaps maps = partial_maps(spec);
  operands.require(maps.expected_rows >= 0 && maps.expected_rows <= num_rows,
                   "expected_rows must be at most the rows");
  operands.require(!maps.are_partial() || !drops_rows(spec),
                   "partial maps say themselves which rows are dropped");
}

/// Where the rows of dropped pairs begin.
void check_end_of_rows(OperandChecker& operands, const OpSpec& spec) {
  if (drops_rows(spec)) {
    const OperandSpec& offsets = next_integers(operands, "offsets", Access::kRead, 1);
    operands.require(offsets.shape[0] >= 2, "offsets must be [E+1] of at least one expert");
  }
}

void check_gather_rows(const OpSpec& spec) {
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& pair_of = next_integers(operands, "pair_of", Access::kRead, 1);
  const OperandSpec& row_of = next_integers(operands, "row_of", Access::kRead, 2);
  check_partial(operands, spec, pair_of.shape[0]);
  operands.require(partial_maps(spec).are_partial() || !is_fp8(x.dtype),
                   "rows of FP8 need partial maps");
  operands.require(row_of.shape[0] == x.shape[0] && (partial_maps(spec).are_partial() ||
                                                     row_of.shape.num_elems() == pair_of.shape[0]),
                   "row_of must be [T,K], and pair_of [T K], of x's T rows");
  check_end_of_rows(operands, spec);
  operands.expect("y", Access::kWrite, x.dtype, {pair_of.shape[0], x.shape[1]});
  operands.done();
}

void check_sum_rows(const OpSpec& spec) {
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& row_of = next_integers(operands, "row_of", Access::kRead, 2);
  check_partial(operands, spec, x.shape[0]);
  operands.require(partial_maps(spec).are_partial() || row_of.shape.num_elems() == x.shape[0],
                   "row_of must be [T,K] of x's T K rows");
  operands.expect("pair_of", Access::kRead, DType::kI32, {x.shape[0]});
  check_end_of_rows(operands, spec);
  operands.expect("y", Access::kWrite, x.dtype, {row_of.shape[0], x.shape[1]});
  operands.done();
}

void check_permute_elems(const OpSpec& spec) {
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, rank_of(spec, 0));
  const OperandSpec& order = next_integers(operands, "order", Access::kRead, rank_of(spec, 1));
  const bool is_partial = partial_maps(spec).are_partial();
  check_partial(operands, spec, x.shape.rank() == 1 ? x.shape[0] : order.shape[0]);
  operands.require(is_partial || order.shape.num_elems() == x.shape.num_elems(),
                   "order must have as many elements as x");
  operands.expect("inverse", Access::kRead, DType::kI32, x.shape);
  operands.require(
      !(drops_rows(spec) || is_partial) || (x.shape.rank() == 1) != (order.shape.rank() == 1),
      "either x or y must be of rows, and the other of pairs");
  check_end_of_rows(operands, spec);
  operands.expect("y", Access::kWrite, x.dtype, order.shape);
  operands.done();
}

void check_offsets(OperandChecker& operands) {
  const OperandSpec& offsets = next_integers(operands, "offsets", Access::kRead, 1);
  operands.require(offsets.shape[0] >= 2, "offsets must be [E+1] of at least one expert");
}

/// An activation of the rows of experts: swiglu reads pairs of elements of one operand, relu2
/// single ones.
struct RoutedForm {
  std::string_view x;  ///< names of the operand and its gradient
  std::string_view dx;
  int64_t elems = 1;  ///< of x for each of y
};
constexpr RoutedForm kOfSwiglu{.x = "gate_up", .dx = "d_gate_up", .elems = 2};
constexpr RoutedForm kOfRelu2{.x = "x", .dx = "dx"};

/// x, weights.
const OperandSpec& check_routed_inputs(OperandChecker& operands, const RoutedForm& form) {
  const OperandSpec& x = operands.next_floating(form.x, Access::kRead, 2);
  operands.require(x.shape[1] % form.elems == 0, "gate_up must hold pairs of gate and up");
  operands.expect("weights", Access::kRead, accumulator_dtype(x.dtype), {x.shape[0]});
  return x;
}

template <const RoutedForm& kForm>
void check_routed(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = check_routed_inputs(operands, kForm);
  check_offsets(operands);
  operands.expect("y", Access::kWrite, x.dtype, {x.shape[0], x.shape[1] / kForm.elems});
  operands.done();
}

template <const RoutedForm& kForm>
void check_routed_backward(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = check_routed_inputs(operands, kForm);
  operands.expect("dy", Access::kRead, x.dtype, {x.shape[0], x.shape[1] / kForm.elems});
  check_offsets(operands);
  operands.expect(kForm.dx, Access::kWrite, x.dtype, x.shape);
  operands.expect("d_weights", Access::kWrite, spec.operands[1].dtype, spec.operands[1].shape);
  operands.done();
}

OpCost sort_rows_cost(const OpSpec& spec) {
  return elementwise_cost<1>(without_tally(spec));
}

/// The second map is only handed to the backward. Of partial maps, each expected row is read and
/// written, by gather_rows, or read and added to the others of its token.
template <int kFlopsPerElement, size_t kRowsOperand>
OpCost moved_rows_cost(const OpSpec& spec) {
  OpSpec priced = spec;
  if (const PartialMaps maps = partial_maps(spec); maps.are_partial()) {
    priced.operands[kRowsOperand].shape[0] = maps.expected_rows;
    if (kRowsOperand != 0) {
      priced.operands[0].shape[0] = std::min(spec.operands[0].shape[0], maps.expected_rows);
    }
  }
  OpCost cost = elementwise_cost<kFlopsPerElement>(priced);
  cost.bytes_read -= size_bytes(spec.operands[2]);
  return cost;
}

OpCost permuted_cost(const OpSpec& spec) {
  OpCost cost = elementwise_cost<0>(spec);
  cost.bytes_read -= size_bytes(spec.operands[2]);
  return cost;
}

/// The gradient of x by the op that moves rows back: its maps are those of the node, exchanged.
void move_back(BackwardBuilder& builder, const Node& node, std::string op) {
  const ValueId x = node.operands[0];
  const std::optional<ValueId> dy = builder.grad_of(node.operands.back());
  if (!dy || !builder.wants_grad(x)) {
    return;
  }
  const ValueId dx = builder.new_grad(x);
  std::vector<Operand> operands{{*dy}, {node.operands[2]}, {node.operands[1]}};
  if (drops_rows(node.spec)) {
    operands.push_back({node.operands[3]});
  }
  operands.push_back({dx, Access::kWrite});
  builder.add_node(node, std::move(op), node.spec.attributes, operands, Phase::kDgrad);
  builder.add_grad(node, x, dx);
}

void gather_rows_backward(BackwardBuilder& builder, const Node& node) {
  move_back(builder, node, "sum_rows");
}

void sum_rows_backward(BackwardBuilder& builder, const Node& node) {
  move_back(builder, node, "gather_rows");
}

void permute_elems_backward(BackwardBuilder& builder, const Node& node) {
  move_back(builder, node, "permute_elems");
}

/// Gradients of the activation's input and of the weights.
void routed_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[3]);
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId weights = node.operands[1];
  const ValueId dx = builder.new_grad(x);
  const ValueId d_weights = builder.new_grad(weights);
  builder.add_node(node, node.spec.op + "_backward", {},
                   std::array{Operand{x}, Operand{weights}, Operand{*dy}, Operand{node.operands[2]},
                              Operand{dx, Access::kWrite}, Operand{d_weights, Access::kWrite}},
                   Phase::kDgrad);
  builder.add_grad(node, x, dx);
  builder.add_grad(node, weights, d_weights);
}

/// y of F columns.
ValueId add_routed(GraphBuilder& builder, std::string op, int64_t width,
                   const std::array<ValueId, 3>& inputs, std::string_view site) {
  const Value x = builder.value(inputs[0]);
  const ValueId y = builder.add_activation(site, x.dtype, {x.shape[0], width});
  builder.add_node(std::move(op), {},
                   std::array{Operand{inputs[0]}, Operand{inputs[1]}, Operand{inputs[2]},
                              Operand{y, Access::kWrite}},
                   site);
  return y;
}

IntegerNeed expert_needs(const OpSpec& spec, size_t /*operand*/) {
  return {.limit = spec.operands[3].shape[0] - 1};
}

/// Of the maps; then of the offsets.
IntegerNeed map_needs(const OpSpec& spec, size_t operand) {
  if (partial_maps(spec).are_partial()) {
    const size_t other = operand == 1 ? 2 : 1;
    return {.rule = IntegerRule::kPartialMap, .limit = spec.operands[other].shape.num_elems()};
  }
  return operand == 3 ? IntegerNeed{.rule = IntegerRule::kOffsets,
                                    .limit = spec.operands[1].shape.num_elems()}
                      : IntegerNeed{.rule = IntegerRule::kPermutation};
}

/// Adds an op that moves rows. values: x, its two maps, y.
void add_move(GraphBuilder& builder, std::string op, const std::array<ValueId, 4>& values,
              const ExpertRows& rows, std::string_view site) {
  std::vector<Operand> operands{{values[0]}, {values[1]}, {values[2]}};
  if (rows.drops) {
    operands.push_back({rows.offsets});
  }
  operands.push_back({values[3], Access::kWrite});
  builder.add_node(
      std::move(op),
      to_attributes(MovedRowsAttributes{.dropped = {rows.drops}, .partial = rows.partial}),
      operands, site);
}

}  // namespace

const OpDefinition kSortRowsOp{
    .name = "sort_rows",
    .summary = "Order of pairs of token and slot by their experts, which is stable.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_sort_rows,
    .cost = sort_rows_cost,
    .kernel_rate = {.least_ns = 14000},
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
    .integers = expert_needs,
    .tally = TallyKind::kExpertRows,
};

const OpDefinition kGatherRowsOp{
    .name = "gather_rows",
    .summary = "The row of each pair's token, in the order of experts.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_gather_rows,
    .cost = moved_rows_cost<0, 3>,
    .kernel_rate = {.part = 0.86},
    .backward = gather_rows_backward,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .dual = "sum_rows",
    .integers = map_needs,
};

const OpDefinition kSumRowsOp{
    .name = "sum_rows",
    .summary = "Sum of the rows of each token's pairs.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_sum_rows,
    .cost = moved_rows_cost<1, 0>,
    .kernel_rate = {.part = 0.91},
    .backward = sum_rows_backward,
    .split = kNeverSplit,
    .dual = "gather_rows",
    .integers = map_needs,
};

const OpDefinition kPermuteElemsOp{
    .name = "permute_elems",
    .summary = "The elements of x in another order.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_permute_elems,
    .cost = permuted_cost,
    .backward = permute_elems_backward,
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
    .dual = "permute_elems",
    .integers = map_needs,
};

const OpDefinition kRoutedSwigluOp{
    .name = "routed_swiglu",
    .summary = "swiglu of each row, times its weight.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_routed<kOfSwiglu>,
    .cost = elementwise_cost<3>,
    .kernel_rate = {.part = 0.88},
    .backward = routed_backward,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
};

const OpDefinition kRoutedSwigluBackwardOp{
    .name = "routed_swiglu_backward",
    .summary = "Gradients of routed_swiglu with respect to gate, up and weights.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_routed_backward<kOfSwiglu>,
    .cost = elementwise_cost<7>,
    .kernel_rate = {.part = 0.74},
    .split = kNeverSplit,
    .integers = offsets_into_rows,
};

const OpDefinition kRoutedRelu2Op{
    .name = "routed_relu2",
    .summary = "relu2 of each row, times its weight.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_routed<kOfRelu2>,
    .cost = elementwise_cost<3>,
    .backward = routed_backward,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
};

const OpDefinition kRoutedRelu2BackwardOp{
    .name = "routed_relu2_backward",
    .summary = "Gradients of routed_relu2 with respect to x and weights.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_routed_backward<kOfRelu2>,
    .cost = elementwise_cost<6>,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
};

ExpertRows sort_rows(GraphBuilder& builder, ValueId experts, int64_t num_experts,
                     std::optional<ValueId> tally, std::string_view site) {
  const Shape pairs = builder.value(experts).shape;
  const auto add = [&](std::string_view suffix, DType dtype, const Shape& shape) {
    return builder.add_activation(fmt::format("{}{}", site, suffix), dtype, shape);
  };
  const ExpertRows rows{.row_of = add(".row_of", DType::kI32, pairs),
                        .pair_of = add(".pair_of", DType::kI32, {pairs.num_elems()}),
                        .offsets = add(".offsets", DType::kI32, {num_experts + 1}),
                        .counts = add(".counts", DType::kF32, {num_experts})};
  std::vector<Operand> operands{{experts},
                                {rows.row_of, Access::kWrite},
                                {rows.pair_of, Access::kWrite},
                                {rows.offsets, Access::kWrite},
                                {rows.counts, Access::kWrite}};
  if (tally) {
    operands.push_back({*tally, Access::kReadWrite});
  }
  builder.add_node("sort_rows", to_attributes(SortRowsAttributes{.watch = {tally.has_value()}}),
                   operands, site);
  return rows;
}

ExpertRows sort_rows_into(GraphBuilder& builder, ValueId experts, int64_t num_experts,
                          const RowRoom& room, std::string_view site) {
  const Shape pairs = builder.value(experts).shape;
  const auto add = [&](std::string_view suffix, DType dtype, const Shape& shape) {
    return builder.add_activation(fmt::format("{}{}", site, suffix), dtype, shape);
  };
  const ExpertRows rows{.row_of = add(".row_of", DType::kI32, pairs),
                        .pair_of = add(".pair_of", DType::kI32, {room.rows}),
                        .offsets = add(".offsets", DType::kI32, {num_experts + 1}),
                        .counts = add(".counts", DType::kF32, {num_experts}),
                        .partial = {room.expected}};
  builder.add_node(
      "sort_rows", to_attributes(SortRowsAttributes{.room = {true, room.drops}}),
      std::array{Operand{experts}, Operand{rows.row_of, Access::kWrite},
                 Operand{rows.pair_of, Access::kWrite}, Operand{rows.offsets, Access::kWrite},
                 Operand{rows.counts, Access::kWrite}},
      site);
  return rows;
}

ValueId gather_rows(GraphBuilder& builder, ValueId x, const ExpertRows& rows,
                    std::string_view site) {
  const Value input = builder.value(x);
  const int64_t num_rows = builder.value(rows.pair_of).shape[0];
  const ValueId y = builder.add_activation(site, input.dtype, {num_rows, input.shape[1]});
  add_move(builder, "gather_rows", {x, rows.pair_of, rows.row_of, y}, rows, site);
  return y;
}

ValueId sum_rows(GraphBuilder& builder, ValueId x, const ExpertRows& rows, std::string_view site) {
  const Value input = builder.value(x);
  const int64_t num_tokens = builder.value(rows.row_of).shape[0];
  const ValueId y = builder.add_activation(site, input.dtype, {num_tokens, input.shape[1]});
  add_move(builder, "sum_rows", {x, rows.row_of, rows.pair_of, y}, rows, site);
  return y;
}

ValueId sort_weights(GraphBuilder& builder, ValueId weights, const ExpertRows& rows,
                     std::string_view site) {
  const ValueId y =
      builder.add_activation(site, builder.value(weights).dtype, builder.value(rows.pair_of).shape);
  add_move(builder, "permute_elems", {weights, rows.pair_of, rows.row_of, y}, rows, site);
  return y;
}

ValueId routed_swiglu(GraphBuilder& builder, ValueId gate_up, ValueId weights, ValueId offsets,
                      std::string_view site) {
  const int64_t width = builder.value(gate_up).shape[1] / 2;
  return add_routed(builder, "routed_swiglu", width, {gate_up, weights, offsets}, site);
}

ValueId routed_relu2(GraphBuilder& builder, ValueId x, ValueId weights, ValueId offsets,
                     std::string_view site) {
  const int64_t width = builder.value(x).shape[1];
  return add_routed(builder, "routed_relu2", width, {x, weights, offsets}, site);
}

}  // namespace braid
