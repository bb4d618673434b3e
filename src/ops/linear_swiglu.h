#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "ops/op.h"

namespace braid {

/// A product and the activation function beside it as one op, so that what one hands to the other
/// need not cross memory. Their meaning is `unfused`: the two ops one behind the other, the same
/// bits. No attributes, not differentiable: a pass places them, behind autodiff.
///
/// linear_swiglu: x [N,K], w [2F,K] -> gate_up [N,2F], y [N,F]; gate_up = x w^T, rounded to its
/// dtype, and y = swiglu of what was rounded (activation.h says which elements are gates).
///
/// linear_dgrad_swiglu_backward: dy [N,M], w [M,F], gate_up [N,2F] -> d_gate_up [N,2F]; with
/// d_h = dy w, rounded to its dtype, d_gate_up = swiglu_backward(gate_up, d_h). d_h is no operand.
extern const OpDefinition kLinearSwigluOp;
extern const OpDefinition kLinearDgradSwigluBackwardOp;

/// The two ops that a fused one stands for.
struct ProductAndActivation {
  OpSpec product;     ///< linear: x, w -> gate_up; linear_dgrad: dy, w -> d_h
  OpSpec activation;  ///< swiglu: gate_up -> y; swiglu_backward: gate_up, d_h -> d_gate_up
};

/// Whether the spec is of one of the two ops.
bool is_fused_product(const OpSpec& spec);

/// Whether a product can be one op with such an activation function.
bool is_fusable_activation(const OpSpec& spec);

/// Which operand of such an activation the product makes.
size_t handed_on(const OpSpec& activation);

/// Whether what the product makes is an operand of the fused op too.
bool keeps_product(const OpSpec& activation);

/// An operand of a fused op, as an operand of one of the two that it stands for.
struct FusedOperand {
  bool of_product = true;
  size_t operand = 0;
};
std::array<FusedOperand, 4> fused_operands(const OpSpec& activation);

/// Of a spec of one of the two ops, which must have passed its check.
ProductAndActivation unfused(const OpSpec& spec);

/// The op that stands for both, where there is one: `activation` reads all that `product` writes
/// and nothing else of it, and there is neither a bias nor a sum that is added to.
std::optional<OpSpec> fused(const ProductAndActivation& parts);

}  // namespace braid
