#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// add: a, b -> c, equal shapes and dtypes, c = a + b (autodiff sums the gradients of a value with
/// several uses with it). accumulate: x -> y (rw), equal shapes, y f32 (f64 for f64 x), or bf16 for
/// x f32 or bf16; y += x, added in fp32 (f64) and rounded once.
/// cast: x -> y, equal shapes; f32 <-> bf16, f64 <-> f32; round to nearest even. copy: x -> y,
/// equal shapes and dtypes. fill: -> y; every element = value, which for types other than f64, f32
/// and bf16 must be 0.
struct FillAttributes {
  double value = 0.0;
  void fields(auto&& visit) { visit("value", value); }
};

extern const OpDefinition kAddOp;
extern const OpDefinition kAccumulateOp;
extern const OpDefinition kCastOp;
extern const OpDefinition kCopyOp;
extern const OpDefinition kFillOp;

ValueId add(GraphBuilder& builder, ValueId a, ValueId b, std::string_view site);

}  // namespace braid
