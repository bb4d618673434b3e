#include "ops/linear_swiglu.h"

#include <array>

#include "base/errors.h"
#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_linear_swiglu(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == x.dtype && w.shape[1] == x.shape[1] && w.shape[0] % 2 == 0,
                   "w must be [2F,K] of x's dtype and K");
  operands.expect("gate_up", Access::kWrite, x.dtype, {x.shape[0], w.shape[0]});
  operands.expect("y", Access::kWrite, x.dtype, {x.shape[0], w.shape[0] / 2});
  operands.done();
}

void check_linear_dgrad_swiglu_backward(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& dy = operands.next_floating("dy", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == dy.dtype && w.shape[0] == dy.shape[1],
                   "w must be [M,F] of dy's dtype and M");
  const Shape gate_up{dy.shape[0], 2 * w.shape[1]};
  operands.expect("gate_up", Access::kRead, dy.dtype, gate_up);
  operands.expect("d_gate_up", Access::kWrite, dy.dtype, gate_up);
  operands.done();
}

// The arithmetic of both ops; only the operands cross memory.
OpCost fused_cost(const OpSpec& spec) {
  const ProductAndActivation parts = unfused(spec);
  OpCost cost = operand_bytes(spec);
  cost.flops = spec_cost(parts.product).flops + spec_cost(parts.activation).flops;
  return cost;
}

GemmShape fused_shape(const OpSpec& spec) {
  const OpSpec product = unfused(spec).product;
  return find_op(product.op).gemm_shape(product);
}

OperandSpec with_access(OperandSpec operand, Access access) {
  operand.access = access;
  return operand;
}

std::optional<OpSpec> fused_forward(const OpSpec& linear, const OpSpec& swiglu) {
  const OperandSpec& gate_up = linear.operands.back();
  if (attributes_of<LinearAttributes>(linear).has_bias ||
      swiglu.operands[0] != with_access(gate_up, Access::kRead)) {
    return std::nullopt;
  }
  return OpSpec{std::string(kLinearSwigluOp.name),
                {},
                {linear.operands[0], linear.operands[1], gate_up, swiglu.operands[1]}};
}

std::optional<OpSpec> fused_backward(const OpSpec& dgrad, const OpSpec& swiglu_backward) {
  const OperandSpec& d_h = dgrad.operands[2];
  if (attributes_of<LinearDgradAttributes>(dgrad).accumulate ||
      swiglu_backward.operands[1] != with_access(d_h, Access::kRead)) {
    return std::nullopt;
  }
  return OpSpec{std::string(kLinearDgradSwigluBackwardOp.name),
                {},
                {dgrad.operands[0], dgrad.operands[1], swiglu_backward.operands[0],
                 swiglu_backward.operands[2]}};
}

}  // namespace

const OpDefinition kLinearSwigluOp{
    .name = "linear_swiglu",
    .summary = "gate_up = x w^T, y = swiglu(gate_up).",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_linear_swiglu,
    .cost = fused_cost,
    .gemm_shape = fused_shape,
    .split = kNeverSplit,
    .values = ValueRule::kOfParts,
};

const OpDefinition kLinearDgradSwigluBackwardOp{
    .name = "linear_dgrad_swiglu_backward",
    .summary = "Gradient of swiglu from that behind the product that reads its result, dy w.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_linear_dgrad_swiglu_backward,
    .cost = fused_cost,
    .gemm_shape = fused_shape,
    .split = kNeverSplit,
    .values = ValueRule::kOfParts,
};

bool is_fused_product(const OpSpec& spec) {
  return spec.op == kLinearSwigluOp.name || spec.op == kLinearDgradSwigluBackwardOp.name;
}

bool is_fusable_activation(const OpSpec& spec) {
  return spec.op == kSwigluOp.name || spec.op == kSwigluBackwardOp.name;
}

size_t handed_on(const OpSpec& activation) {
  return activation.op == kSwigluOp.name ? 0 : 1;
}

bool keeps_product(const OpSpec& activation) {
  return activation.op == kSwigluOp.name;
}

std::array<FusedOperand, 4> fused_operands(const OpSpec& activation) {
  if (keeps_product(activation)) {
    return {{{true, 0}, {true, 1}, {true, 2}, {false, 1}}};
  }
  return {{{true, 0}, {true, 1}, {false, 0}, {false, 2}}};
}

ProductAndActivation unfused(const OpSpec& spec) {
  check(is_fused_product(spec), "op {} is not a product with an activation function", spec.op);
  const std::vector<OperandSpec>& o = spec.operands;
  if (spec.op == kLinearSwigluOp.name) {
    return {
        .product = {std::string(kLinearOp.name),
                    to_attributes(LinearAttributes{}),
                    {o[0], o[1], o[2]}},
        .activation = {std::string(kSwigluOp.name), {}, {with_access(o[2], Access::kRead), o[3]}}};
  }
  const OperandSpec d_h{
      .dtype = o[0].dtype, .access = Access::kWrite, .shape = {o[0].shape[0], o[1].shape[1]}};
  return {
      .product = {std::string(kLinearDgradOp.name),
                  to_attributes(LinearDgradAttributes{}),
                  {o[0], o[1], d_h}},
      .activation = {
          std::string(kSwigluBackwardOp.name), {}, {o[2], with_access(d_h, Access::kRead), o[3]}}};
}

std::optional<OpSpec> fused(const ProductAndActivation& parts) {
  if (parts.product.op == kLinearOp.name && parts.activation.op == kSwigluOp.name) {
    return fused_forward(parts.product, parts.activation);
  }
  if (parts.product.op == kLinearDgradOp.name && parts.activation.op == kSwigluBackwardOp.name) {
    return fused_backward(parts.product, parts.activation);
  }
  return std::nullopt;
}

}  // namespace braid
