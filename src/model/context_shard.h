#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/model_spec.h"
#include "model/tensor_shard.h"
#include "ops/context_attention.h"
#include "ops/context_sections.h"
#include "ops/positions.h"

namespace braid {

/// One rank's place among the ranks that share every sequence: index = outer index * inner + inner
/// index. A sequence has 2n equal chunks for n outer ranks; outer rank o holds chunks o and 2n - 1
/// - o (zig-zag), in this order. Its inner ranks hold equal consecutive runs of these. If all ranks
/// exchange heads (outer 1), each holds one run of each half of the sequence if the halves divide
/// evenly, else one run. With two runs, heads of one half can be exchanged while the other half is
/// computed (passes/context/split_exchange.h).
struct ContextShard {
  int64_t size = 1;                             ///< ranks of the group
  int64_t index = 0;                            ///< this rank's
  int64_t inner = 1;                            ///< ranks of an all-to-all, a divisor of size
  ContextMethod method = ContextMethod::kRing;  ///< between the outer ranks
  MambaContext mamba = MambaContext::kHeads;

  bool is_split() const { return size > 1; }
  int64_t outer() const { return size / inner; }
  int64_t outer_index() const { return index / inner; }
  /// The outer rank as if it did not share its tokens with inner ranks.
  ContextShard outer_shard() const { return {.size = outer(), .index = outer_index()}; }

  /// Number of equal runs of consecutive tokens that a rank holds if all ranks exchange heads.
  int64_t runs(int64_t sequence) const {
    return is_split() && outer() == 1 && sequence % (2 * size) == 0 ? 2 : 1;
  }
  /// The equal runs of consecutive tokens that every rank holds of a sequence, one or two.
  ContextSections sections(int64_t sequence) const;
  /// The sequence must be a multiple of this: every rank has as many tokens, and if there are
  /// several outer ranks, each has two equal chunks. The value is `size`, or twice that if an odd
  /// number of inner ranks shares the two chunks.
  int64_t sequence_multiple() const;
  /// Positions of this rank's tokens of a sequence of `sequence` tokens: sequence / size of them.
  /// The sequence must fit (`check_context_parallel`).
  TokenPositions positions(int64_t sequence) const;
  /// The same as a list.
  std::vector<int64_t> position_list(int64_t sequence) const;
};

/// Inner ranks must divide this number: the greatest common divisor, over all blocks of the model,
/// of the heads of a tensor rank that the block exchanges. 0 if no block exchanges any.
int64_t exchanged_heads(const ModelSpec& spec, const TensorShard& tensor);

/// Throws ConfigError naming the rule, the values and the nearest that fits. Rules:
/// `sequence_multiple` must divide the sequence; inner ranks must divide the context ranks and
/// every tensor rank's heads and key/value heads.
void check_context_parallel(const ModelSpec& spec, const TensorShard& tensor,
                            const ContextShard& context, int64_t sequence);

}  // namespace braid
