#pragma once

#include <cstdint>

#include "model/model_spec.h"

namespace braid {

/// One rank's place in a tensor-parallel group, whose ranks split every matrix of the model.
/// Source: Shoeybi et al., Megatron-LM, 2019; sequence parallelism: Korthikanti et al., Reducing
/// activation recomputation in large transformer models, 2022.
struct TensorShard {
  int64_t size = 1;   ///< ranks of the group
  int64_t index = 0;  ///< this rank's
  /// Between the matrices a rank holds 1/size of a microbatch's rows instead of all of them.
  bool sequence_parallel = false;

  bool is_split() const { return size > 1; }
  bool splits_rows() const { return is_split() && sequence_parallel; }
};

/// What one rank of a tensor-parallel group holds of a model.
struct LocalSizes {
  int64_t heads = 0;       ///< query heads, from index * heads
  int64_t kv_heads = 0;    ///< at least 1, even where the model has fewer than there are ranks
  int64_t kv_begin = 0;    ///< its first key/value head, counted in the model's
  int64_t kv_sharers = 1;  ///< ranks that hold the same key/value heads: the group "tensor.kv"
  int64_t kv_sharer = 0;   ///< this rank's index among them
  int64_t ffn = 0;
  int64_t vocabulary_begin = 0;  ///< its first row of embedding and output projection
  int64_t vocabulary_rows = 0;   ///< those past the vocabulary are padding

  int64_t qkv_rows(int64_t head_size) const { return (heads + 2 * kv_heads) * head_size; }
};

/// The model must fit the shard (`check_tensor_parallel`).
LocalSizes local_sizes(const ModelSpec& spec, const TensorShard& tensor);

/// Rows of the embedding over all ranks: the vocabulary rounded up to a multiple of 128 and of the
/// number of ranks. More than ModelSpec::padded_vocabulary where that does not come out even; files
/// hold rows of the vocabulary only, so they do not depend on it.
int64_t padded_vocabulary(const ModelSpec& spec, int64_t tensor_ranks);

/// Throws ConfigError naming rule, values and the nearest that fits where a model cannot be split
/// in this way: tensor ranks must divide heads and ffn, and divide kv_heads or be a multiple of
/// them; with sequence parallelism they must divide `rows`, a microbatch's rows on one rank
/// (train.microbatch * train.sequence / parallel.context). The vocabulary is padded instead.
void check_tensor_parallel(const ModelSpec& spec, const TensorShard& tensor, int64_t rows);

}  // namespace braid
