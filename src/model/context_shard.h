#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/model_spec.h"
#include "model/tensor_shard.h"
#include "ops/context_attention.h"
#include "ops/positions.h"

namespace braid {

/// One rank's place among those that share every sequence: index = outer index * inner + inner
/// index. Outer rank o of n holds chunks o and 2n - 1 - o of 2n equal ones (zig-zag), in this
/// order; its inner ranks hold equal consecutive runs of these. Where all ranks exchange heads
/// (outer 1), each holds a run of each half of the sequence if that comes out even, so that heads
/// of one half can be exchanged while the other is computed (passes/context/split_exchange.h), else
/// one run.
struct ContextShard {
  int64_t size = 1;                             ///< ranks of the group
  int64_t index = 0;                            ///< this rank's
  int64_t inner = 1;                            ///< ranks of an all-to-all, a divisor of size
  ContextMethod method = ContextMethod::kRing;  ///< between the outer ranks

  bool is_split() const { return size > 1; }
  int64_t outer() const { return size / inner; }
  int64_t outer_index() const { return index / inner; }

  /// Equal runs of consecutive tokens of a sequence that a rank holds where all exchange heads.
  int64_t runs(int64_t sequence) const {
    return is_split() && outer() == 1 && sequence % (2 * size) == 0 ? 2 : 1;
  }
  /// What must divide a sequence: every rank has as many tokens, and outer ranks, if there are
  /// several, two equal chunks. That is `size`, or twice that where an odd number of inner ranks
  /// shares the two chunks.
  int64_t sequence_multiple() const;
  /// Of this rank's tokens of a sequence of `sequence` tokens: sequence / size of them. The
  /// sequence must fit (`check_context_parallel`).
  TokenPositions positions(int64_t sequence) const;
  /// The same, written out.
  std::vector<int64_t> position_list(int64_t sequence) const;
};

/// What inner ranks must divide: of all blocks of the model, the heads of a tensor rank that they
/// exchange, as their greatest common divisor. 0 if no block exchanges any.
int64_t exchanged_heads(const ModelSpec& spec, const TensorShard& tensor);

/// Throws ConfigError naming rule, values and the nearest that fits: `sequence_multiple` must
/// divide the sequence, inner ranks must divide the context ranks and every tensor rank's heads and
/// key/value heads.
void check_context_parallel(const ModelSpec& spec, const TensorShard& tensor,
                            const ContextShard& context, int64_t sequence);

}  // namespace braid
