#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/attention.h"
#include "ops/graph.h"
#include "ops/op.h"

/// Causal attention of a sequence that is split over ranks. The sequence has 2 * ranks equal
/// chunks, and each rank of the outer group holds two: rank r holds the chunks r and 2 * ranks - 1
/// - r in this order (zig-zag), so that all ranks have the same number of pairs of query and key.
namespace braid {

enum class ContextMethod : uint8_t {
  kRing,       ///< kv is passed from rank to rank; at most two exist at a time, in addition to the
               ///< rank's own
  kAllGather,  ///< kv of all ranks is gathered
};

/// attention_finish: sum f32 [N,W] -> out [N,W], rounded once (f64: both are f64). Its backward is
/// that of all steps that computed the sum: it repeats them and their communication, so that no kv
/// is kept.
struct AttentionFinishAttributes {
  int64_t group = 0;  ///< index into StageGraph::groups
  int64_t ranks = 1;  ///< of the group
  int64_t index = 0;  ///< index of this rank
  bool gathers = false;
  void fields(auto&& visit) {
    visit("group", group);
    visit("ranks", ranks);
    visit("index", index);
    visit("gathers", gathers);
  }
};

extern const OpDefinition kAttentionFinishOp;

/// With a window (attention_window.h), steps have only the queries and keys that see and are seen.
/// Steps of the ring in which no rank sees a key are left out, and kv moves on by several places.
///
/// One rank's part in attention over context ranks: `inner` ranks exchange heads for sequence
/// (all-to-all), so that each has all rows of an outer rank and 1/inner of its heads; `outer` ranks
/// then pass on or gather keys and values. Sources: Jacobs et al., DeepSpeed Ulysses, 2023; the
/// combination: Fang and Zhao, USP, 2024.
struct ContextAttention {
  AttentionAttributes core;  ///< of this rank; sequence: its tokens. scale 0: 1/sqrt(head_size)
  std::string_view inner_group = "context.inner";
  std::string_view outer_group = "context.outer";
  int64_t inner = 1;
  int64_t inner_runs = 1;  ///< runs of consecutive tokens of a sequence on each inner rank; outer 1
  int64_t outer = 1;
  int64_t outer_index = 0;
  ContextMethod method = ContextMethod::kRing;
  /// With core.documents: starts (documents.h) of the rows of this rank's outer rank, which are its
  /// own if inner is 1.
  std::optional<ValueId> starts = {};
};

/// qkv [N,(H+2K)*D] -> out [N,H*D].
ValueId context_attention(GraphBuilder& builder, ValueId qkv, const ContextAttention& context,
                          std::string_view site);

}  // namespace braid
