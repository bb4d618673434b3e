#pragma once

#include "ops/graph.h"
#include "ops/norm.h"
#include "ops/op.h"

namespace braid {

/// head_norm: qkv [N,(H+2K)*D], query_weight, key_weight -> y of the shape of qkv, rstd f32
/// [N,G]. RMSNorm of queries and keys, values are copied. A row holds H query heads, then K key
/// heads, then K value heads of D elements.
///   whole = false   each head is normalised alone; weights [D], shared by heads (Qwen3): G = H + K
///   whole = true    all query heads of a row together, and all key heads; weights [H*D] and [K*D]
///                   (OLMoE): G = 2
/// y = x * rstd * (w + weight_offset), rstd = 1 / sqrt(mean(x^2) + epsilon), in f32 (f64 for f64
/// data).
struct HeadNormAttributes {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool whole = false;
  double epsilon = 1e-6;
  NormOffset offset = {};
  void fields(auto&& visit) {
    visit("heads", heads);
    visit("kv_heads", kv_heads);
    visit("head_size", head_size);
    visit("whole", whole);
    visit("epsilon", epsilon);
    visit.optional(offset);
  }
};

/// head_norm_backward: qkv, query_weight, key_weight, rstd, dy -> d_qkv, d_query_weight f32,
/// d_key_weight f32 (added to with `accumulate`, otherwise overwritten). Column sums run over rows
/// in an order that depends only on the shape.
struct HeadNormBackwardAttributes {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool whole = false;
  bool accumulate = true;
  NormOffset offset = {};
  void fields(auto&& visit) {
    visit("heads", heads);
    visit("kv_heads", kv_heads);
    visit("head_size", head_size);
    visit("whole", whole);
    visit("accumulate", accumulate);
    visit.optional(offset);
  }
};

extern const OpDefinition kHeadNormOp;
extern const OpDefinition kHeadNormBackwardOp;

struct HeadNormOperands {
  ValueId qkv;
  ValueId query_weight;
  ValueId key_weight;
};
ValueId head_norm(GraphBuilder& builder, const HeadNormOperands& operands,
                  const HeadNormAttributes& attributes, std::string_view site);

}  // namespace braid
