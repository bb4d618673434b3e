#include "ops/add_gated.h"

#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// x of the operands x and z.
const OperandSpec& check_gated(OperandChecker& operands) {
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.expect("z", Access::kRead, accumulator_dtype(x.dtype), {x.shape[0], 1});
  return x;
}

void check_add_gated(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& a = operands.next_floating("a", Access::kRead, 2);
  const OperandSpec& x = check_gated(operands);
  operands.require(x.dtype == a.dtype && x.shape == a.shape, "x must be like a");
  operands.expect("y", Access::kWrite, a.dtype, a.shape);
  operands.done();
}

void check_add_gated_backward(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = check_gated(operands);
  operands.expect("dy", Access::kRead, x.dtype, x.shape);
  operands.expect("dx", Access::kWrite, x.dtype, x.shape);
  operands.expect("dz", Access::kWrite, accumulator_dtype(x.dtype), {x.shape[0], 1});
  operands.done();
}

void add_gated_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[3]);
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[1];
  const ValueId z = node.operands[2];
  builder.add_grad(node, node.operands[0], *dy);
  const ValueId dx = builder.new_grad(x);
  const ValueId dz = builder.new_grad(z);
  builder.add_node(node, "add_gated_backward", {},
                   std::array{Operand{x}, Operand{z}, Operand{*dy}, Operand{dx, Access::kWrite},
                              Operand{dz, Access::kWrite}},
                   Phase::kDgrad);
  builder.add_grad(node, x, dx);
  builder.add_grad(node, z, dz);
}

}  // namespace

const OpDefinition kAddGatedOp{
    .name = "add_gated",
    .summary = "y = a + sigmoid(z) * x, with one z per row.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_add_gated,
    .cost = elementwise_cost<2>,
    .backward = add_gated_backward,
    .split = kSplitByRows,
};

const OpDefinition kAddGatedBackwardOp{
    .name = "add_gated_backward",
    .summary = "Gradients of add_gated with respect to x and z.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_add_gated_backward,
    .cost = elementwise_cost<3>,
    .split = kSplitByRows,
};

ValueId add_gated(GraphBuilder& builder, ValueId a, const GatedAddend& gated,
                  std::string_view site) {
  const Value like = builder.value(a);
  const ValueId y = builder.add_activation(site, like.dtype, like.shape);
  builder.add_node(
      "add_gated", {},
      std::array{Operand{a}, Operand{gated.x}, Operand{gated.z}, Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace braid
