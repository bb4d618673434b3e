#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "base/errors.h"
#include "ops/op.h"

namespace braid {

/// A product and the adjacent activation function as one op, so that the intermediate result need
/// not pass through memory. The meaning is `unfused`: the two ops one after the other, with the
/// same bits; only d_weights may be added up in another order. No attributes, not differentiable: a
/// pass inserts them, after autodiff.
///
/// linear_swiglu: x [N,K], w [2F,K] -> gate_up [N,2F], y [N,F]; gate_up = x w^T, rounded to its
/// dtype, and y = swiglu of the rounded values (activation.h defines the order of gates).
///
/// linear_dgrad_swiglu_backward: dy [N,M], w [M,F], gate_up [N,2F] -> d_gate_up [N,2F]; with d_h =
/// dy w, rounded to its dtype, d_gate_up = swiglu_backward(gate_up, d_h). d_h is not an operand.
///
/// grouped_linear_swiglu: x [R,K], w [E 2F,K], offsets i32 [E+1], weights f32 [R] -> gate_up
/// [R,2F], y [R,F]; the same of the rows of experts, by grouped_linear (grouped_linear.h) and
/// routed_swiglu (expert_rows.h).
///
/// grouped_linear_dgrad_swiglu_backward: dy [R,M], w [E M,F], offsets, gate_up [R,2F], weights ->
/// d_gate_up [R,2F], d_weights f32 [R]; by grouped_linear_dgrad and routed_swiglu_backward.
extern const OpDefinition kLinearSwigluOp;
extern const OpDefinition kLinearDgradSwigluBackwardOp;
extern const OpDefinition kGroupedLinearSwigluOp;
extern const OpDefinition kGroupedLinearDgradSwigluBackwardOp;

/// The two ops that a fused op replaces. The result of the product is its last operand.
struct ProductAndActivation {
  OpSpec product;     ///< like linear: x, w -> gate_up; linear_dgrad: dy, w -> d_h
  OpSpec activation;  ///< like swiglu: gate_up -> y; swiglu_backward: gate_up, d_h -> d_gate_up
};

/// Whether the op of the spec is one of the fused ops.
bool is_fused_product(const OpSpec& spec);

/// Whether a product can be fused with this activation function.
bool is_fusable_activation(const OpSpec& spec);

/// The operand of the activation that the product computes.
size_t handed_on(const OpSpec& activation);

/// Whether the result of the product is also an operand of the fused op.
bool keeps_product(const OpSpec& activation);

/// Whether one kernel for both gives the bits of two: all but d_weights are.
bool fusing_keeps_bits(const OpSpec& activation);

/// An operand of a fused op, as an operand of one of its two parts.
struct FusedOperand {
  bool of_product = true;
  size_t operand = 0;
};
std::span<const FusedOperand> fused_operands(const OpSpec& activation);

/// What both parts read, so that the fused op has it once: operands that must be the same memory.
struct SharedOperand {
  size_t of_product = 0;
  size_t of_activation = 0;
};
std::span<const SharedOperand> shared_operands(const OpSpec& activation);

/// For a spec of one of the fused ops, which must have passed its check.
ProductAndActivation unfused(const OpSpec& spec);

/// One thing for each operand of the two parts: its memory, for example. Allocates nothing.
template <class T>
class PartOperands {
 public:
  /// `operands`: of the fused op. `between`: of what the product hands on without it being an
  /// operand.
  PartOperands(const ProductAndActivation& parts, std::span<const T> operands, T between)
      : num_product_(parts.product.operands.size()),
        num_activation_(parts.activation.operands.size()) {
    check(std::max(num_product_, num_activation_) <= kMost, "a part of {} and {} operands",
          num_product_, num_activation_);
    product().back() = between;
    const std::span<const FusedOperand> fused = fused_operands(parts.activation);
    for (size_t i = 0; i < fused.size(); ++i) {
      (fused[i].of_product ? product_ : activation_)[fused[i].operand] = operands[i];
    }
    for (const SharedOperand& shared : shared_operands(parts.activation)) {
      activation_[shared.of_activation] = product_[shared.of_product];
    }
    activation_[handed_on(parts.activation)] = product().back();
  }

  std::span<T> product() { return {product_.data(), num_product_}; }
  std::span<T> activation() { return {activation_.data(), num_activation_}; }

 private:
  static constexpr size_t kMost = 6;
  size_t num_product_;
  size_t num_activation_;
  std::array<T, kMost> product_{};
  std::array<T, kMost> activation_{};
};

/// The op that replaces both, if there is one. Requires that `activation` reads everything that
/// `product` writes and, but for shared operands, no other operand of it, that there is no bias,
/// and that no sum is accumulated.
std::optional<OpSpec> fused(const ProductAndActivation& parts);

}  // namespace braid
