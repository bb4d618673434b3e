#pragma once

#include <cstdint>

#include "model/context_shard.h"
#include "model/model_spec.h"
#include "model/tensor_shard.h"

namespace braid {

/// The heads of attention that one rank of a tensor-parallel group holds.
struct LocalHeads {
  int64_t heads = 0;       ///< query heads, from index * heads
  int64_t kv_heads = 0;    ///< at least 1, even where the model has fewer than there are ranks
  int64_t kv_begin = 0;    ///< its first key/value head, counted in the model's
  int64_t kv_sharers = 1;  ///< ranks that hold the same key/value heads: the group "tensor.kv"
  int64_t kv_sharer = 0;   ///< this rank's index among them

  int64_t qkv_rows(int64_t head_size) const { return (heads + 2 * kv_heads) * head_size; }
};

/// The model must fit the shard (`check_tensor_parallel`).
LocalHeads local_heads(const ModelSpec& spec, const TensorShard& tensor);

/// Throws ConfigError naming the nearest that fits if these are not heads that so many context
/// ranks can exchange; `nearest_inner` as in ContextLimits.
void check_exchanged_heads(const LocalHeads& local, const ContextShard& context,
                           int64_t nearest_inner);

/// Whether any layer has these heads, with a window or without.
bool has_heads(const LayerPattern& layers);

/// Of the ranks of a group, those that hold the same key/value heads; 1 without attention.
int64_t kv_sharers(const ModelSpec& spec, int64_t tensor_ranks);

/// Width of a packed qkv row: (heads + 2 kv_heads) * head_size.
int64_t qkv_width(const ModelSpec& spec);

}  // namespace braid
