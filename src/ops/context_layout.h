#pragma once

#include <array>

#include "ops/graph.h"
#include "ops/op.h"

/// Ops that rearrange rows and heads for attention over context ranks. H query heads, K key/value
/// heads of D elements.
namespace braid {

/// pack_kv: qkv [N,(H+2K)*D] -> kv [N,2*K*D], the last columns of each row.
/// assemble_qkv: d_q f32 [N,H*D], d_kv f32 [N,2*K*D] -> d_qkv [N,(H+2K)*D], rounded once (f64: all
/// are f64).

/// zigzag_order: x [ranks*B*S,W], blocks as ranks hold them -> y [B*ranks*S,W] in order of
/// position. `inverse`: the opposite direction.
struct ZigzagOrderAttributes {
  int64_t ranks = 1;
  int64_t sequence = 0;  ///< S, even
  bool inverse = false;
  void fields(auto&& visit) {
    visit("ranks", ranks);
    visit("sequence", sequence);
    visit("inverse", inverse);
  }
};

/// With groups > 0 rows are those of mamba2 (mamba2.h) instead: z, x [H D each], B, C [groups *
/// state each] and dt [H].
struct StateColumns {
  int64_t groups = 0;
  int64_t state = 0;
  void fields(auto&& visit) {
    visit("groups", groups);
    visit("state", state);
  }
  friend bool operator==(const StateColumns&, const StateColumns&) = default;
};

/// split_heads: x [N,(H+2K)D] -> y [ranks*N,(H+2K)D/ranks]: block r holds the r-th part of the
/// query heads, of the key heads and of the value heads of all rows. `inverse`: the opposite
/// direction. kv_heads 0: rows of query heads only.
struct SplitHeadsAttributes {
  int64_t ranks = 1;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool inverse = false;
  StateColumns states = {};
  void fields(auto&& visit) {
    visit("ranks", ranks);
    visit("heads", heads);
    visit("kv_heads", kv_heads);
    visit("head_size", head_size);
    visit("inverse", inverse);
    visit.optional(states);
  }

  /// Columns of the parts of a whole row, of each of which a rank has an equal run.
  std::array<int64_t, 5> parts() const {
    if (states.groups > 0) {
      const int64_t factor = states.groups * states.state;
      return {heads * head_size, heads * head_size, factor, factor, heads};
    }
    return {heads * head_size, kv_heads * head_size, kv_heads * head_size, 0, 0};
  }
};

/// swap_blocks: x [outer*inner*M,W] -> y of the same shape: block (i, j) of M rows becomes block
/// (j, i).
struct SwapBlocksAttributes {
  int64_t outer = 1;
  int64_t inner = 1;
  void fields(auto&& visit) {
    visit("outer", outer);
    visit("inner", inner);
  }
};

extern const OpDefinition kPackKvOp;
extern const OpDefinition kAssembleQkvOp;
extern const OpDefinition kZigzagOrderOp;
extern const OpDefinition kSplitHeadsOp;
extern const OpDefinition kSwapBlocksOp;

ValueId zigzag_order(GraphBuilder& builder, ValueId x, const ZigzagOrderAttributes& attributes,
                     std::string_view site);
ValueId split_heads(GraphBuilder& builder, ValueId x, const SplitHeadsAttributes& attributes,
                    std::string_view site);
/// Returns x itself if there is nothing to swap.
ValueId swap_blocks(GraphBuilder& builder, ValueId x, const SwapBlocksAttributes& attributes,
                    std::string_view site);

}  // namespace braid
