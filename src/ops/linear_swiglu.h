#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "ops/op.h"

namespace braid {

/// A product and the adjacent activation function as one op, so that the intermediate result need
/// not pass through memory. The meaning is `unfused`: the two ops one after the other, with the
/// same bits. No attributes, not differentiable: a pass inserts them, after autodiff.
///
/// linear_swiglu: x [N,K], w [2F,K] -> gate_up [N,2F], y [N,F]; gate_up = x w^T, rounded to its
/// dtype, and y = swiglu of the rounded values (activation.h defines the order of gates).
///
/// linear_dgrad_swiglu_backward: dy [N,M], w [M,F], gate_up [N,2F] -> d_gate_up [N,2F]; with d_h =
/// dy w, rounded to its dtype, d_gate_up = swiglu_backward(gate_up, d_h). d_h is not an operand.
extern const OpDefinition kLinearSwigluOp;
extern const OpDefinition kLinearDgradSwigluBackwardOp;

/// The two ops that a fused op replaces.
struct ProductAndActivation {
  OpSpec product;     ///< linear: x, w -> gate_up; linear_dgrad: dy, w -> d_h
  OpSpec activation;  ///< swiglu: gate_up -> y; swiglu_backward: gate_up, d_h -> d_gate_up
};

/// Whether the op of the spec is one of the two fused ops.
bool is_fused_product(const OpSpec& spec);

/// Whether a product can be fused with this activation function.
bool is_fusable_activation(const OpSpec& spec);

/// The operand of the activation that the product computes.
size_t handed_on(const OpSpec& activation);

/// Whether the result of the product is also an operand of the fused op.
bool keeps_product(const OpSpec& activation);

/// An operand of a fused op, as an operand of one of its two parts.
struct FusedOperand {
  bool of_product = true;
  size_t operand = 0;
};
std::array<FusedOperand, 4> fused_operands(const OpSpec& activation);

/// For a spec of one of the two fused ops, which must have passed its check.
ProductAndActivation unfused(const OpSpec& spec);

/// The op that replaces both, if there is one. Requires that `activation` reads everything that
/// `product` writes and no other operand of it, that there is no bias, and that no sum is
/// accumulated.
std::optional<OpSpec> fused(const ProductAndActivation& parts);

}  // namespace braid
