#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// The products of E experts with their rows (ops/expert_rows.h). Weights are one matrix [E M, K]:
/// expert e has its rows [e M, (e + 1) M). offsets i32 [E+1]: expert e multiplies the rows
/// [offsets[e], offsets[e+1]) of x; offsets[0] = 0, and offsets[E] <= R. Rows from offsets[E] on
/// are neither read nor written.
///
/// grouped_linear: x [R,K], w [E M,K], offsets -> y [R,M]; y = x w_e^T. No attributes.
/// grouped_linear_dgrad: dy [R,M], w, offsets -> dx [R,K]; dx = dy w_e. No attributes.
/// grouped_linear_wgrad: x [R,K], dy [R,M], offsets -> dw f32 [E M,K]; dw_e (+)= dy_e^T x_e. With
/// `accumulate` they are added to (kReadWrite), otherwise overwritten; the gradient of an expert
/// without rows is then 0. Attributes: `accumulate`.
struct GroupedWgradAttributes {
  bool accumulate = true;
  void fields(auto&& visit) { visit("accumulate", accumulate); }
};

extern const OpDefinition kGroupedLinearOp;
extern const OpDefinition kGroupedLinearDgradOp;
extern const OpDefinition kGroupedLinearWgradOp;

ValueId grouped_linear(GraphBuilder& builder, ValueId x, ValueId weight, ValueId offsets,
                       std::string_view site);

}  // namespace braid
