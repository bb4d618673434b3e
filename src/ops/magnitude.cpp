#include "ops/magnitude.h"

#include <algorithm>
#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// The b are between a and squares, the first operand that is written; without one, the last.
size_t num_factors(const OpSpec& spec) {
  const auto written = std::ranges::find_if(
      spec.operands, [](const OperandSpec& operand) { return writes(operand.access); });
  const auto end = written == spec.operands.end() ? std::ssize(spec.operands) - 1
                                                  : written - spec.operands.begin();
  return static_cast<size_t>(std::clamp<int64_t>(end, 3, kMostAdapters + 2) - 2);
}

void check_adapted_squares(const OpSpec& spec) {
  const auto attributes = attributes_of<AdaptedSquaresAttributes>(spec).adapters;
  OperandChecker operands(spec);
  const OperandSpec& w = operands.next_floating("w", Access::kRead, 2);
  const OperandSpec& a = operands.next("a", Access::kRead, 2);
  operands.require(a.dtype == w.dtype && a.shape[1] == w.shape[1],
                   "a must be [R,K] of w's dtype and K");
  const auto n = static_cast<int64_t>(num_factors(spec));
  for (size_t i = 0; i < num_factors(spec); ++i) {
    const OperandSpec& b = operands.next("b", Access::kRead, 2);
    operands.require(b.dtype == w.dtype && b.shape[1] * n == a.shape[0],
                     "b must be of w's dtype, with an equal share of the rows of a as columns");
    operands.require(are_in_row(attributes.begin_of(i), attributes.step, b.shape[0], w.shape[0]),
                     "the rows of b must be rows of w");
  }
  operands.expect("squares", Access::kWrite, accumulator_dtype(w.dtype), {2, w.shape[0]});
  operands.done();
}

/// Reads only the rows of w that have adapters.
OpCost adapted_squares_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  const OperandSpec& w = spec.operands[0];
  double rows = 0;
  for (size_t i = 0; i < num_factors(spec); ++i) {
    const Shape& b = spec.operands[i + 2].shape;
    rows += static_cast<double>(b[0]);
    cost.flops += static_cast<double>(w.shape[1] * b[0]) * static_cast<double>(2 * b[1] + 5);
  }
  cost.bytes_read -= size_bytes(w) * (1.0 - rows / static_cast<double>(w.shape[0]));
  return cost;
}

/// v, change and squares.
const OperandSpec& check_scaled(OperandChecker& operands) {
  const OperandSpec& v = operands.next_floating("v", Access::kRead, 2);
  const int64_t width = v.shape[1];
  operands.expect("change", Access::kRead, v.dtype, {width});
  operands.expect("squares", Access::kRead, accumulator_dtype(v.dtype), {2, width});
  return v;
}

void check_apply_magnitudes(const OpSpec& spec) {
  const auto attributes = attributes_of<ApplyMagnitudesAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& v = check_scaled(operands);
  operands.require(attributes.has_bias || attributes.adds_bias, "there is no bias to leave out");
  if (attributes.has_bias) {
    operands.expect("bias", Access::kRead, v.dtype, {v.shape[1]});
  }
  operands.expect("y", Access::kWrite, v.dtype, v.shape);
  operands.done();
}

void check_apply_magnitudes_backward(const OpSpec& spec) {
  const auto attributes = attributes_of<ApplyMagnitudesBackwardAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& v = check_scaled(operands);
  operands.expect("dy", Access::kRead, v.dtype, v.shape);
  operands.expect("dv", Access::kWrite, v.dtype, v.shape);
  operands.expect("dchange", accumulate_access(attributes.accumulate), accumulator_dtype(v.dtype),
                  {v.shape[1]});
  operands.done();
}

void apply_magnitudes_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands.back());
  if (!dy) {
    return;
  }
  const auto attributes = attributes_of<ApplyMagnitudesAttributes>(node.spec);
  check(!attributes.has_bias || builder.value(node.operands[3]).frozen,
        "op {} at {}: its bias gets no gradient", node.spec.op, node.site);
  const ValueId v = node.operands[0];
  const ValueId change = node.operands[1];
  const ValueId dv = builder.new_grad(v);
  builder.add_node(node, "apply_magnitudes_backward",
                   to_attributes(ApplyMagnitudesBackwardAttributes{}),
                   std::array{Operand{v}, Operand{change}, Operand{node.operands[2]}, Operand{*dy},
                              Operand{dv, Access::kWrite},
                              Operand{builder.main_grad(change), Access::kReadWrite}},
                   Phase::kDgrad);
  builder.add_grad(node, v, dv);
}

/// change, squares and bias.
constexpr SplitTraits kAllMagnitudes{.dimension = SplitDimension::kRows,
                                     .is_whole = [](const OpSpec& spec, size_t operand) {
                                       return operand > 0 && operand + 1 < spec.operands.size();
                                     }};

}  // namespace

const OpDefinition kAdaptedSquaresOp{
    .name = "adapted_squares",
    .summary = "Squared lengths of the rows of w and of w + scale b a.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_adapted_squares,
    .cost = adapted_squares_cost,
    .recompute = Recompute::kNone,  // its result is small, and of all microbatches
    .split = kNeverSplit,
};

const OpDefinition kApplyMagnitudesOp{
    .name = "apply_magnitudes",
    .summary = "y = v times the trained length of its feature's row over the length it has.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_apply_magnitudes,
    .cost = elementwise_cost<2>,
    .backward = apply_magnitudes_backward,
    .recompute = Recompute::kNorms,  // the backward reads v in any case
    .split = kAllMagnitudes,
    .added_by_one = "adds_bias",
};

const OpDefinition kApplyMagnitudesBackwardOp{
    .name = "apply_magnitudes_backward",
    .summary = "Gradients of apply_magnitudes with respect to v and to the trained lengths.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_apply_magnitudes_backward,
    .cost = elementwise_cost<3>,
    .split = kNeverSplit,  // sums over rows
    .pieces = {.is_by_row =
                   [](const OpSpec&, size_t operand) {
                     return operand != 1 && operand != 2 && operand < 5;
                   }},
};

ValueId adapted_squares(GraphBuilder& builder, const AdaptedWeight& weight, std::string_view site) {
  const Value like = builder.value(weight.weight);
  const ValueId squares = builder.add_value({.name = builder.scoped(site),
                                             .dtype = accumulator_dtype(like.dtype),
                                             .shape = {2, like.shape[0]},
                                             .kind = ValueKind::kOfWeights});
  std::vector<Operand> operands{{weight.weight}, {weight.a}};
  for (const Adapter& adapter : weight.adapters) {
    operands.push_back({adapter.z});
  }
  operands.push_back({squares, Access::kWrite});
  builder.add_node("adapted_squares",
                   to_attributes(AdaptedSquaresAttributes{
                       adapters_attributes(weight.adapters, weight.scale, site)}),
                   operands, site);
  return squares;
}

ValueId apply_magnitudes(GraphBuilder& builder, ValueId v, const Magnitudes& magnitudes,
                         std::string_view site) {
  const Value like = builder.value(v);
  const ValueId y = builder.add_activation(site, like.dtype, like.shape);
  std::vector<Operand> operands{{v}, {magnitudes.change}, {magnitudes.squares}};
  if (magnitudes.bias) {
    operands.push_back({*magnitudes.bias});
  }
  operands.push_back({y, Access::kWrite});
  builder.add_node("apply_magnitudes",
                   to_attributes(ApplyMagnitudesAttributes{.has_bias = magnitudes.bias.has_value(),
                                                           .adds_bias = magnitudes.adds_bias}),
                   operands, site);
  return y;
}

}  // namespace braid
