#pragma once

#include "ops/op.h"

namespace braid {

/// Products of FP8 matrices with scales (ops/quantize.h). Both operands have the dimension over
/// which the product sums last, as tensor cores of sm_90 need it. Elements are f8e4m3 or f8e5m2, at
/// most one of the two f8e5m2. Each product of elements counts with the scales of both; sums are in
/// fp32 or wider, and rounded once to the dtype of the result.
///
/// scaled_linear: x [N,K], x_scales, w [M,K], w_scales, optionally bias [M] -> y [N,M] (f32 or
/// bf16); y = x w^T + bias. Without `adds_bias` y lacks the bias, as in `linear`.
///
/// scaled_linear_dgrad: dy [N,M], dy_scales, w^T [K,M], w_scales -> dx [N,K] (f32 or bf16).
///
/// scaled_linear_wgrad: x^T [K,N], x_scales, dy^T [M,N], dy_scales -> dw f32 [M,K]; with
/// `accumulate` it is added to.
///
/// With blocks of 128, scales of weights are square, all others are not.
///
/// With `hopper_sums` the CPU sums as cuBLASLt does on Hopper (backends/cpu/kernels/hopper_sums.h).
/// It changes nothing on other devices.
struct EmulatedSums {
  bool hopper_sums = false;
  void fields(auto&& visit) { visit("hopper_sums", hopper_sums); }
  friend bool operator==(const EmulatedSums&, const EmulatedSums&) = default;
};

struct ScaledLinearAttributes {
  int64_t block = 128;
  bool has_bias = false;
  bool adds_bias = true;
  EmulatedSums sums = {};
  void fields(auto&& visit) {
    visit("block", block);
    visit("has_bias", has_bias);
    visit("adds_bias", adds_bias);
    visit.optional(sums);
  }
};

struct ScaledLinearDgradAttributes {
  int64_t block = 128;
  EmulatedSums sums = {};
  void fields(auto&& visit) {
    visit("block", block);
    visit.optional(sums);
  }
};

struct ScaledLinearWgradAttributes {
  int64_t block = 128;
  bool accumulate = true;
  EmulatedSums sums = {};
  void fields(auto&& visit) {
    visit("block", block);
    visit("accumulate", accumulate);
    visit.optional(sums);
  }
};

/// The attribute `block` of one of these products.
int64_t scale_block(const OpSpec& product);

extern const OpDefinition kScaledLinearOp;
extern const OpDefinition kScaledLinearDgradOp;
extern const OpDefinition kScaledLinearWgradOp;

}  // namespace braid
