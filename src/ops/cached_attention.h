#pragma once

#include "ops/attention_window.h"
#include "ops/graph.h"
#include "ops/op.h"
#include "ops/token_cache.h"

namespace braid {

/// cached_attention: qkv [B*R,(H+2K)*D] (row layout as in rope.h), begins i32 [B], counts i32 [B]
/// (token_cache.h), keys [B,C,K*D] and values [B,C,K*D] (both kReadWrite) -> out [B*R,H*D]. For
/// each of B sequences, appends keys and values of its first counts[b] rows to the begins[b] tokens
/// in the caches, and attends: row r sees the tokens [0, begins[b] + r] of the caches, with
/// `window` (attention_window.h) the last ones of them. Rows from counts[b] on are padding, and
/// their results 0. Query head h reads key/value head h / (H/K); out = softmax(scale * q k^T) v, as
/// `attention` of the whole sequence. Not differentiable.
struct CachedAttentionAttributes {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  double scale = 1.0;
  AttentionWindow window = {};
  void fields(auto&& visit) {
    visit("heads", heads);
    visit("kv_heads", kv_heads);
    visit("head_size", head_size);
    visit("scale", scale);
    visit.optional(window);
  }
};

extern const OpDefinition kCachedAttentionOp;

/// scale 0 means 1/sqrt(head_size). The caches are the values "<prefix>.<site>.keys" and
/// "<prefix>.<site>.values".
ValueId cached_attention(GraphBuilder& builder, ValueId qkv, const CacheOperands& cache,
                         CachedAttentionAttributes attributes, std::string_view site);

}  // namespace braid
