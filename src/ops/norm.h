#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// What is added to the weights of an RMSNorm, in the type of the statistics: Gemma's have 1, so
/// that weights of 0 change nothing. Absent: 0.
struct NormOffset {
  double weight_offset = 0.0;
  friend bool operator==(const NormOffset&, const NormOffset&) = default;
  void fields(auto&& visit) { visit("weight_offset", weight_offset); }
};

/// Normalisation over the last dimension; statistics are fp32 (f64 for f64 data).
struct NormAttributes {
  double epsilon = 1e-5;
  NormOffset offset = {};
  void fields(auto&& visit) {
    visit("epsilon", epsilon);
    visit.optional(offset);
  }
};

/// rmsnorm: x [N,C], w [C] -> y [N,C], rstd f32 [N]. y = x * rstd * (w + weight_offset), rstd = 1 /
/// sqrt(mean(x^2) + epsilon). add_rmsnorm: x [N,C], residual [N,C], w [C] -> sum [N,C], y [N,C],
/// rstd f32 [N]. sum = x + residual (rounded to its dtype), y = rmsnorm(sum). layernorm: x [N,C], w
/// [C], b [C] -> y [N,C], mean f32 [N], rstd f32 [N]. add_layernorm: x, residual, w, b -> sum, y,
/// mean, rstd.
///
/// rmsnorm_backward: x [N,C], w [C], rstd f32 [N], dy [N,C], optionally d_sum [N,C] -> dx [N,C], dw
/// f32 [C]. layernorm_backward: x, w, mean, rstd, dy, optionally d_sum -> dx, dw f32 [C], db f32
/// [C]. For the add_ forms x is the sum, and dx = d_sum + gradient through the norm is the gradient
/// of both addends. With `accumulate`, dw and db are added to (kReadWrite), otherwise overwritten.
/// Column sums run over rows in an order that depends only on the shape.
struct NormBackwardAttributes {
  bool has_d_sum = false;
  bool accumulate = true;
  NormOffset offset = {};
  void fields(auto&& visit) {
    visit("has_d_sum", has_d_sum);
    visit("accumulate", accumulate);
    visit.optional(offset);
  }
};

extern const OpDefinition kRmsnormOp;
extern const OpDefinition kAddRmsnormOp;
extern const OpDefinition kRmsnormBackwardOp;
extern const OpDefinition kLayernormOp;
extern const OpDefinition kAddLayernormOp;
extern const OpDefinition kLayernormBackwardOp;

struct AddNormResult {
  ValueId sum;
  ValueId normed;
};

ValueId rmsnorm(GraphBuilder& builder, ValueId x, ValueId weight, double epsilon,
                std::string_view site, NormOffset offset = {});
AddNormResult add_rmsnorm(GraphBuilder& builder, ValueId x, ValueId residual, ValueId weight,
                          double epsilon, std::string_view site, NormOffset offset = {});
ValueId layernorm(GraphBuilder& builder, ValueId x, ValueId weight, ValueId bias, double epsilon,
                  std::string_view site);
AddNormResult add_layernorm(GraphBuilder& builder, ValueId x, ValueId residual, ValueId weight,
                            ValueId bias, double epsilon, std::string_view site);

}  // namespace braid
