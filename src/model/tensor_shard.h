#pragma once

#include <cstdint>

#include "model/model_spec.h"

namespace braid {

/// One rank's place in a tensor-parallel group. The ranks of the group split every matrix of the
/// model. Source: Shoeybi et al., Megatron-LM, 2019; sequence parallelism: Korthikanti et al.,
/// Reducing activation recomputation in large transformer models, 2022.
struct TensorShard {
  int64_t size = 1;   ///< ranks of the group
  int64_t index = 0;  ///< this rank's
  /// Between the matrices a rank holds 1/size of a microbatch's rows instead of all of them.
  bool sequence_parallel = false;

  bool is_split() const { return size > 1; }
  bool splits_rows() const { return is_split() && sequence_parallel; }
};

/// The rows of embedding and output projection that one rank of a tensor-parallel group holds.
struct LocalVocabulary {
  int64_t begin = 0;
  int64_t rows = 0;  ///< those past the vocabulary are padding
};
LocalVocabulary local_vocabulary(const ModelSpec& spec, const TensorShard& tensor);

/// Rows of the embedding over all ranks: the vocabulary rounded up to a multiple of 128 and of the
/// number of ranks. May be more than ModelSpec::padded_vocabulary. Files hold rows of the
/// vocabulary only, so they do not depend on it.
int64_t padded_vocabulary(const ModelSpec& spec, int64_t tensor_ranks);

/// Throws ConfigError naming the rule, the values and the nearest that fits if a model cannot be
/// split in this way. Rules come from the blocks: tensor ranks must divide heads and ffn, and
/// divide kv_heads or be a multiple of it. With sequence parallelism they must divide `rows`, a
/// microbatch's rows on one rank (train.microbatch * train.sequence / parallel.context). The
/// vocabulary is padded instead.
void check_tensor_parallel(const ModelSpec& spec, const TensorShard& tensor, int64_t rows);

}  // namespace braid
