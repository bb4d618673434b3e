#pragma once

#include <optional>

#include "ops/attention_window.h"
#include "ops/documents.h"
#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// A promise that value heads of qkv, and the heads of d_out, are zero from element `value_size`
/// on, as in latent attention (mla_qkv.h), whose value heads are padded to the size of the others.
/// It changes no result: `out` is zero there, and d_qkv's value heads are, too. 0: no promise.
struct ValuePadding {
  int64_t value_size = 0;
  friend bool operator==(const ValuePadding&, const ValuePadding&) = default;
  void fields(auto&& visit) { visit("value_size", value_size); }
};

/// attention: qkv [N,(H+2K)*D] (row layout as in rope.h) -> out [N,H*D], lse f32
/// [N/sequence,H,sequence]. Causal self-attention within each run of `sequence` rows; query head h
/// reads key/value head h / (H/K). out = softmax(scale * q k^T) v; lse is the log-sum-exp of the
/// scaled scores. Never stores sequence x sequence scores. attention_backward: qkv, out, lse, d_out
/// [N,H*D] -> d_qkv [N,(H+2K)*D]. With `documents`, both read starts (documents.h) after qkv and
/// d_out, and a query sees the keys from the start of its document on. With `window`
/// (attention_window.h), it sees the last ones only. Source: Dao et al., FlashAttention, 2022.
struct AttentionAttributes {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t sequence = 0;
  double scale = 1.0;
  AttentionDocuments documents = {};
  ValuePadding padding = {};
  AttentionWindow window = {};
  void fields(auto&& visit) {
    visit("heads", heads);
    visit("kv_heads", kv_heads);
    visit("head_size", head_size);
    visit("sequence", sequence);
    visit("scale", scale);
    visit.optional(documents);
    visit.optional(padding);
    visit.optional(window);
  }
};

extern const OpDefinition kAttentionOp;
extern const OpDefinition kAttentionBackwardOp;

/// scale 0 means 1/sqrt(head_size). `starts` if the attributes have documents.
ValueId attention(GraphBuilder& builder, ValueId qkv, AttentionAttributes attributes,
                  std::string_view site, std::optional<ValueId> starts = {});

}  // namespace braid
