#pragma once

#include <optional>

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// embedding: tokens i32 [N], table [V,C], optionally positions [P,C] -> out [N,C].
/// out[n] = table[tokens[n]] (+ positions[n % sequence]). A token outside [0, V) is a DeviceError
/// naming it on the CPU, and a row of NaN on a GPU, which cannot stop inside a graph.
struct EmbeddingAttributes {
  int64_t sequence = 0;  ///< T; N is a multiple of it
  bool has_positions = false;
  void fields(auto&& visit) {
    visit("sequence", sequence);
    visit("has_positions", has_positions);
  }
};

/// embedding_wgrad: tokens i32 [N], d_out [N,C] -> d_table f32 [V,C]; rows are summed in ascending
/// n (deterministic). position_embedding_wgrad: d_out [N,C] -> d_positions f32 [P,C]; rows p >=
/// sequence get no gradient. With `accumulate` the result is added to the gradient, else it
/// overwrites all of it (rows without a token become 0).
struct EmbeddingWgradAttributes {
  int64_t sequence = 0;
  bool accumulate = true;
  void fields(auto&& visit) {
    visit("sequence", sequence);
    visit("accumulate", accumulate);
  }
};

extern const OpDefinition kEmbeddingOp;
extern const OpDefinition kEmbeddingWgradOp;
extern const OpDefinition kPositionEmbeddingWgradOp;

ValueId embedding(GraphBuilder& builder, ValueId tokens, ValueId table,
                  std::optional<ValueId> positions, int64_t sequence, std::string_view site);

}  // namespace braid
