#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention_step.h"
#include "passes/analysis/piece_rows.h"
#include "passes/analysis/value_pieces.h"

namespace braid {

/// What a step of causal attention computes.
struct AttentionValues {
  std::vector<ValuePiece> sum;  ///< row by row
  std::vector<ValuePiece> lse;  ///< head by head
};

/// The values of causal attention of one sequence, or of its last queries: a row follows from its
/// query and from all keys and values up to it. So both have the same values in these rows.
/// `queries`: rows of qkv; `kv`: rows from the first key on. `hash`: of what steps of one attention
/// have in common.
AttentionValues attention_values(uint64_t hash, const AttentionStepAttributes& step,
                                 std::span<const ValuePiece> queries,
                                 std::span<const ValuePiece> kv);

}  // namespace braid
