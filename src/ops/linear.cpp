#include "ops/linear.h"

#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_linear(const OpSpec& spec) {
  const auto attributes = attributes_of<LinearAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == x.dtype && w.shape[1] == x.shape[1],
                   "w must be [M,K] of x's dtype and K");
  operands.require(attributes.has_bias || attributes.adds_bias, "there is no bias to leave out");
  if (attributes.has_bias) {
    operands.expect("bias", Access::kRead, x.dtype, {w.shape[0]});
  }
  operands.expect("y", Access::kWrite, x.dtype, {x.shape[0], w.shape[0]});
  operands.done();
}

void check_linear_dgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<LinearDgradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& dy = operands.next_floating("dy", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == dy.dtype && w.shape[0] == dy.shape[1],
                   "w must be [M,K] of dy's dtype and M");
  operands.expect("dx", accumulate_access(attributes.accumulate), dy.dtype,
                  {dy.shape[0], w.shape[1]});
  operands.done();
}

void check_linear_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<LinearWgradAttributes>(spec);
  const Access access = accumulate_access(attributes.accumulate);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& dy = operands.next("dy", Access::kRead, 2);
  operands.require(x.dtype == dy.dtype && x.shape[0] == dy.shape[0],
                   "x and dy must agree in dtype and rows");
  const FeatureSlice& slice = attributes.features;
  operands.require(
      slice.is_all() || (slice.first_feature >= 0 && slice.first_feature < slice.end_feature &&
                         slice.end_feature <= dy.shape[1]),
      "the slice of features must be some of dy's");
  const int64_t features = slice.is_all() ? dy.shape[1] : slice.end_feature - slice.first_feature;
  const DType grads = operands.expect_main_grad("dw", access, x.dtype, {features, x.shape[1]});
  if (attributes.has_bias) {
    operands.expect("db", access, grads, {dy.shape[1]});
  }
  operands.done();
}

// All three are products of an [a,b] and a [b,c] matrix; operand 0 has two of the three distinct
// dimensions, and operand 1 the third.
template <int kThirdAxis>
OpCost gemm_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = 2.0 * elems(spec, 0) * static_cast<double>(spec.operands[1].shape[kThirdAxis]);
  return cost;
}

// Reads the slice of dy; all of dy if it computes the bias gradient.
OpCost wgrad_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  const OperandSpec& dy = spec.operands[1];
  const int64_t features = spec.operands[2].shape[0];
  cost.flops = 2.0 * elems(spec, 0) * static_cast<double>(features);
  if (!attributes_of<LinearWgradAttributes>(spec).has_bias) {
    cost.bytes_read -= static_cast<double>(dy.shape[0] * (dy.shape[1] - features)) *
                       static_cast<double>(dtype_bytes(dy.dtype));
  }
  return cost;
}

void linear_backward(BackwardBuilder& builder, const Node& node) {
  const auto attributes = attributes_of<LinearAttributes>(node.spec);
  const std::optional<ValueId> dy = builder.grad_of(node.operands.back());
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId w = node.operands[1];
  if (builder.wants_grad(x)) {
    const ValueId dx = builder.new_grad(x);
    builder.add_node(node, "linear_dgrad", to_attributes(LinearDgradAttributes{}),
                     std::array{Operand{*dy}, Operand{w}, Operand{dx, Access::kWrite}},
                     Phase::kDgrad);
    builder.add_grad(node, x, dx);
  }
  std::vector<Operand> operands{{x}, {*dy}, {builder.main_grad(w), Access::kReadWrite}};
  if (attributes.has_bias) {
    operands.push_back({builder.main_grad(node.operands[2]), Access::kReadWrite});
  }
  builder.add_node(node, "linear_wgrad",
                   to_attributes(LinearWgradAttributes{.has_bias = attributes.has_bias}), operands,
                   Phase::kWgrad);
}

GemmShape linear_shape(const OpSpec& spec) {
  const Shape& x = spec.operands.at(0).shape;
  const Shape& w = spec.operands.at(1).shape;
  return {.rows = x[0], .columns = w[0], .depth = x[1], .dtype = spec.operands[0].dtype};
}

GemmShape dgrad_shape(const OpSpec& spec) {
  const Shape& dy = spec.operands.at(0).shape;
  const Shape& w = spec.operands.at(1).shape;
  return {.rows = dy[0], .columns = w[1], .depth = dy[1], .dtype = spec.operands[0].dtype};
}

GemmShape wgrad_shape(const OpSpec& spec) {
  const Shape& x = spec.operands.at(0).shape;
  return {.rows = spec.operands.at(2).shape[0],
          .columns = x[1],
          .depth = x[0],
          .dtype = spec.operands[0].dtype};
}

/// The weight, and the bias if there is one.
bool is_weight(const OpSpec& spec, size_t operand) {
  return operand > 0 && operand + 1 < spec.operands.size();
}

/// Features begin where dy is aligned; a piece is not split again.
int64_t wgrad_unit(const OpSpec& spec) {
  return attributes_of<LinearWgradAttributes>(spec).features.is_all() ? kAlignedElems : 0;
}

/// Only one piece sums dy, with the bits of the whole.
void narrow_wgrad(OpSpec& piece, int64_t begin, int64_t end) {
  auto attributes = attributes_of<LinearWgradAttributes>(piece);
  if (attributes.has_bias && begin > 0) {
    attributes.has_bias = false;
    piece.operands.pop_back();
  }
  attributes.features = {.first_feature = begin, .end_feature = end};
  piece.attributes = to_attributes(attributes);
}

/// For linear and linear_dgrad.
constexpr SplitTraits kProductSplit{
    .dimension = SplitDimension::kRows, .keeps_bits = false, .is_whole = is_weight};
/// A piece is rows of dw, each summed over all rows of x as before.
constexpr SplitTraits kWgradSplit{
    .dimension = SplitDimension::kFeatures,
    .keeps_bits = false,
    .counted = 2,
    .is_whole = [](const OpSpec&, size_t operand) { return operand != 2; },
    .unit = wgrad_unit,
    .narrow = narrow_wgrad};

std::vector<RowRun> wgrad_features(const OpSpec& spec) {
  return {{.begin = 0, .index = attributes_of<LinearWgradAttributes>(spec).features.first_feature}};
}

/// Also forgets the bias gradient, which only one piece has.
void forget_features(OpSpec& spec) {
  auto attributes = attributes_of<LinearWgradAttributes>(spec);
  attributes.features = {};
  attributes.has_bias = false;
  spec.attributes = to_attributes(attributes);
  spec.operands.resize(3);
}

constexpr PieceTraits kWgradPieces{.row_runs = wgrad_features, .forget_piece = forget_features};

}  // namespace

const OpDefinition kLinearOp{
    .name = "linear",
    .summary = "y = x w^T (+ bias).",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .role = OpRole::kProduct,
    .check = check_linear,
    .cost = gemm_cost<0>,
    .backward = linear_backward,
    .gemm_shape = linear_shape,
    .split = kProductSplit,
    .added_by_one = "adds_bias",
};

const OpDefinition kLinearDgradOp{
    .name = "linear_dgrad",
    .summary = "dx = dy w.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .role = OpRole::kProductDgrad,
    .check = check_linear_dgrad,
    .cost = gemm_cost<1>,
    .gemm_shape = dgrad_shape,
    .split = kProductSplit,
};

const OpDefinition kLinearWgradOp{
    .name = "linear_wgrad",
    .summary = "dw += dy^T x into the main grad, db += column sums of dy.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .role = OpRole::kProductWgrad,
    .check = check_linear_wgrad,
    .cost = wgrad_cost,
    .narrow_main_grads = true,
    .gemm_shape = wgrad_shape,
    .split = kWgradSplit,
    .pieces = kWgradPieces,
};

void linear_into(GraphBuilder& builder, const LinearOperands& operands, ValueId y,
                 std::string_view site) {
  const LinearAttributes attributes{.has_bias = operands.bias.has_value(),
                                    .adds_bias = operands.adds_bias};
  std::vector<Operand> list{{operands.x}, {operands.weight}};
  if (operands.bias) {
    list.push_back({*operands.bias});
  }
  list.push_back({y, Access::kWrite});
  builder.add_node("linear", to_attributes(attributes), list, site);
}

ValueId linear(GraphBuilder& builder, const LinearOperands& operands, std::string_view site) {
  const Value& input = builder.value(operands.x);
  const Shape shape{input.shape[0], builder.value(operands.weight).shape[0]};
  const ValueId y = builder.add_activation(site, input.dtype, shape);
  linear_into(builder, operands, y, site);
  return y;
}

ValueId linear(GraphBuilder& builder, ValueId x, ValueId weight, std::optional<ValueId> bias,
               std::string_view site) {
  return linear(builder, {.x = x, .weight = weight, .bias = bias}, site);
}

}  // namespace braid
