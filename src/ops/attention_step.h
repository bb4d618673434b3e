#pragma once

#include "ops/attention_window.h"
#include "ops/documents.h"
#include "ops/op.h"
#include "ops/positions.h"

namespace braid {

/// kv holds the keys and values of whole sequences or of parts of them: a row is K key heads, then
/// K value heads of D elements, which are the last 2KD elements of a row of qkv.
///
/// attention_step: qkv [B*S,(H+2K)*D], kv [B*R,2*K*D] -> sum f32 [B*S,H*D], lse f32 [B,H,S].
/// Attention of the queries [query_begin, + queries) of each sequence to the keys [key_begin, +
/// keys). With `causal`, a query sees the keys up to itself, where the two ranges end at the same
/// position: query i sees key j <= i + keys - queries. `accumulate` merges the result into sum and
/// lse by the log-sum-exp of both; otherwise the other queries get sum 0 and lse -infinity, the
/// values for no key. Sums are f64 for f64.
///
/// attention_step_backward: qkv, kv, out [B*S,H*D], lse, d_out [B*S,H*D] -> d_q f32 [B*S,H*D], d_kv
/// f32 [B*R,2*K*D]: the contributions of the same pairs of query and key to the gradients. out and
/// lse are those of all keys. `accumulate_q` and `accumulate_kv` add to the existing values;
/// otherwise the other rows become 0.
///
/// With `documents`, both read starts [B*S] (documents.h) as the last operand that they only read,
/// and of the keys a query sees only those from the start of its document on. With `window`
/// (attention_window.h) it sees those at the last positions only. The position of key j is
/// key_positions.of(j), of query i window.query_positions.of(i); they ascend. A query may then see
/// no key: it adds nothing. Source: Liu et al., Ring Attention, 2023; the zig-zag order: Zhu, 2024
/// (ring-flash-attention).
struct AttentionStepAttributes {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t sequence = 0;     ///< S, rows of qkv per sequence
  int64_t kv_sequence = 0;  ///< R, rows of kv per sequence
  double scale = 1.0;
  int64_t query_begin = 0;
  int64_t queries = 0;
  int64_t key_begin = 0;
  int64_t keys = 0;
  bool causal = false;
  bool accumulate = false;
  AttentionDocuments documents = {};
  TokenPositions key_positions = {};  ///< of the R keys of a sequence; with documents or a window
  StepWindow window = {};
  void fields(auto&& visit) {
    shared_fields(visit);
    visit("accumulate", accumulate);
    limit_fields(visit);
  }
  void limit_fields(auto&& visit) {
    visit.optional(documents);
    visit.optional(key_positions);
    visit.optional(window);
  }
  void shared_fields(auto&& visit) {
    visit("heads", heads);
    visit("kv_heads", kv_heads);
    visit("head_size", head_size);
    visit("sequence", sequence);
    visit("kv_sequence", kv_sequence);
    visit("scale", scale);
    visit("query_begin", query_begin);
    visit("queries", queries);
    visit("key_begin", key_begin);
    visit("keys", keys);
    visit("causal", causal);
  }
};

struct AttentionStepBackwardAttributes {
  AttentionStepAttributes step;  ///< without `accumulate`
  bool accumulate_q = false;
  bool accumulate_kv = false;
  void fields(auto&& visit) {
    step.shared_fields(visit);
    visit("accumulate_q", accumulate_q);
    visit("accumulate_kv", accumulate_kv);
    step.limit_fields(visit);
  }
};

/// The keys that query number `query` of the range sees: [first, end) of the range of keys, by
/// causality and the window, not by documents.
struct SeenKeys {
  int64_t first = 0;
  int64_t end = 0;
};
SeenKeys seen_keys(const AttentionStepAttributes& step, int64_t query);

extern const OpDefinition kAttentionStepOp;
extern const OpDefinition kAttentionStepBackwardOp;

}  // namespace braid
