#include "ops/activation.h"

#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_gated(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& gate_up = operands.next_floating("gate_up", Access::kRead, 2);
  operands.require(gate_up.shape[1] % 2 == 0, "gate_up must hold pairs of gate and up");
  operands.expect("y", Access::kWrite, gate_up.dtype, {gate_up.shape[0], gate_up.shape[1] / 2});
  operands.done();
}

void check_gated_backward(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& gate_up = operands.next_floating("gate_up", Access::kRead, 2);
  operands.require(gate_up.shape[1] % 2 == 0, "gate_up must hold pairs of gate and up");
  operands.expect("dy", Access::kRead, gate_up.dtype, {gate_up.shape[0], gate_up.shape[1] / 2});
  operands.expect("d_gate_up", Access::kWrite, gate_up.dtype, gate_up.shape);
  operands.done();
}

/// Of an activation function of each element alone.
void check_map(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

void check_map_backward(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.expect("dy", Access::kRead, x.dtype, x.shape);
  operands.expect("dx", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

// Both backward ops read the input and the output gradient, and write the input gradient.
void backward_as(BackwardBuilder& builder, const Node& node, std::string op) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[1]);
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId dx = builder.new_grad(x);
  builder.add_node(node, std::move(op), {},
                   std::array{Operand{x}, Operand{*dy}, Operand{dx, Access::kWrite}},
                   Phase::kDgrad);
  builder.add_grad(node, x, dx);
}

void swiglu_backward(BackwardBuilder& builder, const Node& node) {
  backward_as(builder, node, "swiglu_backward");
}

void geglu_backward(BackwardBuilder& builder, const Node& node) {
  backward_as(builder, node, "geglu_backward");
}

void gelu_backward(BackwardBuilder& builder, const Node& node) {
  backward_as(builder, node, "gelu_backward");
}

void relu2_backward(BackwardBuilder& builder, const Node& node) {
  backward_as(builder, node, "relu2_backward");
}

/// y has half of the columns.
ValueId add_gated(GraphBuilder& builder, std::string op, ValueId gate_up, std::string_view site) {
  const Value input = builder.value(gate_up);
  const ValueId y = builder.add_activation(site, input.dtype, {input.shape[0], input.shape[1] / 2});
  builder.add_node(std::move(op), {}, std::array{Operand{gate_up}, Operand{y, Access::kWrite}},
                   site);
  return y;
}

/// y of x's shape.
ValueId add_map(GraphBuilder& builder, std::string op, ValueId x, std::string_view site) {
  const Value input = builder.value(x);
  const ValueId y = builder.add_activation(site, input.dtype, input.shape);
  builder.add_node(std::move(op), {}, std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace

const OpDefinition kSwigluOp{
    .name = "swiglu",
    .summary = "silu(gate) * up of each pair of neighbours in a row.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_gated,
    .cost = elementwise_cost<3>,
    .backward = swiglu_backward,
    .recompute = Recompute::kNorms,
    .split = kSplitByRows,
    .source = {.num_operands = 2, .result = 1, .width_divisor = 2},
    .values = ValueRule::kByRow,
};

const OpDefinition kSwigluBackwardOp{
    .name = "swiglu_backward",
    .summary = "Gradient of swiglu with respect to gate and up.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_gated_backward,
    .cost = elementwise_cost<6>,
    .split = kSplitByRows,
    .source = {.num_operands = 3, .result = 2},
    .values = ValueRule::kByRow,
};

const OpDefinition kGegluOp{
    .name = "geglu",
    .summary = "gelu(gate) * up of each pair of neighbours in a row.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_gated,
    .cost = elementwise_cost<5>,
    .backward = geglu_backward,
    .recompute = Recompute::kNorms,
    .split = kSplitByRows,
    .source = {.num_operands = 2, .result = 1, .width_divisor = 2},
    .values = ValueRule::kByRow,
};

const OpDefinition kGegluBackwardOp{
    .name = "geglu_backward",
    .summary = "Gradient of geglu with respect to gate and up.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_gated_backward,
    .cost = elementwise_cost<9>,
    .split = kSplitByRows,
    .source = {.num_operands = 3, .result = 2},
    .values = ValueRule::kByRow,
};

const OpDefinition kGeluOp{
    .name = "gelu",
    .summary = "Gaussian error linear unit, tanh approximation.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_map,
    .cost = elementwise_cost<9>,
    .backward = gelu_backward,
    .recompute = Recompute::kNorms,
    .split = kSplitByRows,
    .source = {.num_operands = 2, .result = 1},
    .values = ValueRule::kByRow,
};

const OpDefinition kGeluBackwardOp{
    .name = "gelu_backward",
    .summary = "Gradient of gelu.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_map_backward,
    .cost = elementwise_cost<16>,
    .split = kSplitByRows,
    .source = {.num_operands = 3, .result = 2},
    .values = ValueRule::kByRow,
};

const OpDefinition kRelu2Op{
    .name = "relu2",
    .summary = "Square of the rectified linear unit.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_map,
    .cost = elementwise_cost<2>,
    .backward = relu2_backward,
    .recompute = Recompute::kNorms,
    .split = kSplitByRows,
    .source = {.num_operands = 2, .result = 1},
    .values = ValueRule::kByRow,
};

const OpDefinition kRelu2BackwardOp{
    .name = "relu2_backward",
    .summary = "Gradient of relu2.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_map_backward,
    .cost = elementwise_cost<3>,
    .split = kSplitByRows,
    .source = {.num_operands = 3, .result = 2},
    .values = ValueRule::kByRow,
};

ValueId swiglu(GraphBuilder& builder, ValueId gate_up, std::string_view site) {
  return add_gated(builder, "swiglu", gate_up, site);
}

ValueId geglu(GraphBuilder& builder, ValueId gate_up, std::string_view site) {
  return add_gated(builder, "geglu", gate_up, site);
}

ValueId gelu(GraphBuilder& builder, ValueId x, std::string_view site) {
  return add_map(builder, "gelu", x, site);
}

ValueId relu2(GraphBuilder& builder, ValueId x, std::string_view site) {
  return add_map(builder, "relu2", x, site);
}

}  // namespace braid
