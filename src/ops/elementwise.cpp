#include "ops/elementwise.h"

#include <array>
#include <cmath>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_add(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& a = operands.next_floating(
      "a", Access::kRead, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  operands.expect("b", Access::kRead, a.dtype, a.shape);
  operands.expect("c", Access::kWrite, a.dtype, a.shape);
  operands.done();
}

void add_backward(BackwardBuilder& builder, const Node& node) {
  if (const std::optional<ValueId> dc = builder.grad_of(node.operands[2])) {
    builder.add_grad(node, node.operands[0], *dc);
    builder.add_grad(node, node.operands[1], *dc);
  }
}

void check_accumulate(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating(
      "x", Access::kRead, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  const OperandSpec& y = operands.next("y", Access::kReadWrite, x.shape.rank());
  operands.require(y.shape == x.shape && (y.dtype == accumulator_dtype(x.dtype) ||
                                          (y.dtype == DType::kBF16 && x.dtype != DType::kF64)),
                   "y must have x's shape and be f32 (f64 for f64 x) or bf16");
  operands.done();
}

bool is_cast(DType wide, DType narrow) {
  return (wide == DType::kF32 && narrow == DType::kBF16) ||
         (wide == DType::kF64 && narrow == DType::kF32);
}

void check_cast(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const int rank = spec.operands.empty() ? 0 : spec.operands[0].shape.rank();
  const OperandSpec& x = operands.next("x", Access::kRead, rank);
  const OperandSpec& y = operands.next("y", Access::kWrite, rank);
  operands.require(x.shape == y.shape, "x and y must have one shape");
  operands.require(is_cast(x.dtype, y.dtype) || is_cast(y.dtype, x.dtype),
                   "x and y must be f32 and bf16, or f64 and f32, in either order");
  operands.done();
}

void check_copy(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x =
      operands.next("x", Access::kRead, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

void check_fill(const OpSpec& spec) {
  static_cast<void>(attributes_of<FillAttributes>(spec));
  OperandChecker operands(spec);
  operands.next("y", Access::kWrite, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  operands.done();
}

void check_scale(const OpSpec& spec) {
  const auto attributes = attributes_of<ScaleAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating(
      "x", Access::kRead, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  operands.require(std::isfinite(attributes.factor), "factor must be finite");
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

void scale_backward(BackwardBuilder& builder, const Node& node) {
  if (const std::optional<ValueId> dy = builder.grad_of(node.operands[1])) {
    const ValueId dx = builder.new_grad(node.operands[0]);
    builder.add_node(node, "scale", node.spec.attributes,
                     std::array{Operand{*dy}, Operand{dx, Access::kWrite}}, Phase::kDgrad);
    builder.add_grad(node, node.operands[0], dx);
  }
}

}  // namespace

const OpDefinition kAddOp{
    .name = "add",
    .summary = "c = a + b.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_add,
    .cost = elementwise_cost<1>,
    .backward = add_backward,
    .split = kSplitByRows,
};

const OpDefinition kAccumulateOp{
    .name = "accumulate",
    .summary = "y += x, in the wider of the two types.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_accumulate,
    .cost = elementwise_cost<1>,
    .split = kSplitByRows,
};

const OpDefinition kCastOp{
    .name = "cast",
    .summary = "Converts between floating-point dtypes, rounding to nearest even.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_cast,
    .cost = elementwise_cost<0>,
    .split = kSplitByRows,
};

const OpDefinition kCopyOp{
    .name = "copy",
    .summary = "Copies bytes.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_copy,
    .cost = elementwise_cost<0>,
    .split = kSplitByRows,
    .values = ValueRule::kMoved,
};

const OpDefinition kFillOp{
    .name = "fill",
    .summary = "Sets every element to one value.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_fill,
    .cost = elementwise_cost<0>,
    .split = kNeverSplit,
};

const OpDefinition kScaleOp{
    .name = "scale",
    .summary = "y = x times a constant.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_scale,
    .cost = elementwise_cost<1>,
    .backward = scale_backward,
    .split = kSplitByRows,
    .values = ValueRule::kByRow,
};

ValueId scale(GraphBuilder& builder, ValueId x, double factor, std::string_view site) {
  const Value input = builder.value(x);
  const ValueId y = builder.add_activation(site, input.dtype, input.shape);
  builder.add_node("scale", to_attributes(ScaleAttributes{.factor = factor}),
                   std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

ValueId add(GraphBuilder& builder, ValueId a, ValueId b, std::string_view site) {
  const Value input = builder.value(a);
  const ValueId c = builder.add_activation(site, input.dtype, input.shape);
  builder.add_node("add", {}, std::array{Operand{a}, Operand{b}, Operand{c, Access::kWrite}}, site);
  return c;
}

}  // namespace braid
