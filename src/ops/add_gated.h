#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// add_gated: a [T,C], x [T,C], z f32 [T,1] (f64 for f64 x) -> y [T,C]; y = a + sigmoid(z) * x,
/// with one gate for each row, rounded once. add_gated_backward: x, z, dy [T,C] -> dx [T,C], dz f32
/// [T,1]; dx = sigmoid(z) * dy, dz = sigmoid'(z) * the sum over the row of dy * x. The gradient of
/// a is dy itself. No attributes. Source: Qwen team, Qwen1.5-MoE, 2024 (the gate of the shared
/// expert).

extern const OpDefinition kAddGatedOp;
extern const OpDefinition kAddGatedBackwardOp;

struct GatedAddend {
  ValueId x;  ///< [T,C]
  ValueId z;  ///< f32 [T,1]: the gate before its sigmoid
};

ValueId add_gated(GraphBuilder& builder, ValueId a, const GatedAddend& gated,
                  std::string_view site);

}  // namespace braid
