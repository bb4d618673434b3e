#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// add: a, b -> c, equal shapes and dtypes, c = a + b (autodiff sums the gradients of a value with
/// several uses with it). accumulate: x -> y (rw), equal shapes, y f32 (f64 for f64 x), or bf16 for
/// x f32 or bf16; y += x, added in fp32 (f64) and rounded once.
/// cast: x -> y, equal shapes; f32 <-> bf16, f64 <-> f32; round to nearest even. copy: x -> y,
/// equal shapes and dtypes. fill: -> y; every element = value, which for types other than f64, f32
/// and bf16 must be 0. scale: x -> y, equal shapes and dtypes; y = x * factor, where the factor is
/// rounded to their dtype first, as transformers scales Gemma's embeddings. Its gradient is dy
/// times the same.
struct FillAttributes {
  double value = 0.0;
  void fields(auto&& visit) { visit("value", value); }
};

extern const OpDefinition kAddOp;
extern const OpDefinition kAccumulateOp;
extern const OpDefinition kCastOp;
extern const OpDefinition kCopyOp;
struct ScaleAttributes {
  double factor = 1.0;
  void fields(auto&& visit) { visit("factor", factor); }
};

extern const OpDefinition kFillOp;
extern const OpDefinition kScaleOp;

ValueId add(GraphBuilder& builder, ValueId a, ValueId b, std::string_view site);
ValueId scale(GraphBuilder& builder, ValueId x, double factor, std::string_view site);

}  // namespace braid
