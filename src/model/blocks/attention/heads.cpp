#include "model/blocks/attention/heads.h"

#include <numeric>

#include "base/errors.h"
#include "model/blocks/block.h"

namespace braid {

LocalHeads local_heads(const ModelSpec& spec, const TensorShard& tensor) {
  check(tensor.index >= 0 && tensor.index < tensor.size, "tensor rank {} of {}", tensor.index,
        tensor.size);
  check(!kAttentionBlock.tensor_fault(spec, tensor.size), "{} heads ({} kv) over {} tensor ranks",
        spec.heads, spec.kv_heads, tensor.size);
  LocalHeads local;
  local.heads = spec.heads / tensor.size;
  local.kv_begin = tensor.index * spec.kv_heads / tensor.size;
  if (tensor.size > spec.kv_heads) {
    local.kv_heads = 1;
    local.kv_sharers = tensor.size / spec.kv_heads;
    local.kv_sharer = tensor.index % local.kv_sharers;
  } else {
    local.kv_heads = spec.kv_heads / tensor.size;
  }
  return local;
}

void check_exchanged_heads(const LocalHeads& local, const ContextShard& context,
                           int64_t nearest_inner) {
  if (std::gcd(local.heads, local.kv_heads) % context.inner == 0) {
    return;
  }
  const bool all_exchange = context.inner == context.size;
  throw_config_error(
      "{} = {}: so many context ranks exchange heads, and must divide the {} query and {} "
      "key/value heads of a tensor rank; set parallel.context_method = {}",
      all_exchange ? "parallel.context" : "parallel.context_inner", context.inner, local.heads,
      local.kv_heads,
      nearest_inner == 1 ? "\"ring\""
                         : fmt::format("\"a2a+ring\" and parallel.context_inner = {}, or "
                                       "parallel.context_method = \"ring\"",
                                       nearest_inner));
}

bool has_heads(const LayerPattern& layers) {
  return layers.has(kAttentionBlock) || layers.has(kSlidingBlock);
}

int64_t kv_sharers(const ModelSpec& spec, int64_t tensor_ranks) {
  return has_heads(spec.layers) ? local_heads(spec, {.size = tensor_ranks}).kv_sharers : 1;
}

int64_t qkv_width(const ModelSpec& spec) {
  return (spec.heads + 2 * spec.kv_heads) * spec.head_size;
}

}  // namespace braid
