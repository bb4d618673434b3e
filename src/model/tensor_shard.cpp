#include "model/tensor_shard.h"

#include <cstdlib>
#include <numeric>

#include "base/errors.h"

namespace braid {
namespace {

bool splits_kv_heads(const ModelSpec& spec, int64_t ranks) {
  return spec.kv_heads % ranks == 0 || ranks % spec.kv_heads == 0;
}

bool fits(const ModelSpec& spec, int64_t ranks) {
  return spec.heads % ranks == 0 && spec.ffn % ranks == 0 && splits_kv_heads(spec, ranks);
}

/// The number of tensor ranks next to `wanted` that the model can be split over; the smaller of two
/// that are equally near.
int64_t nearest_fit(const ModelSpec& spec, int64_t wanted) {
  int64_t best = 1;
  for (int64_t ranks = 2; ranks <= spec.heads; ++ranks) {
    if (fits(spec, ranks) && std::abs(ranks - wanted) < std::abs(best - wanted)) {
      best = ranks;
    }
  }
  return best;
}

}  // namespace

int64_t padded_vocabulary(const ModelSpec& spec, int64_t tensor_ranks) {
  const int64_t multiple = std::lcm(int64_t{128}, tensor_ranks);
  return (spec.vocabulary + multiple - 1) / multiple * multiple;
}

LocalSizes local_sizes(const ModelSpec& spec, const TensorShard& tensor) {
  check(tensor.index >= 0 && tensor.index < tensor.size, "tensor rank {} of {}", tensor.index,
        tensor.size);
  check(fits(spec, tensor.size), "a model of {} heads ({} kv) and ffn {} over {} tensor ranks",
        spec.heads, spec.kv_heads, spec.ffn, tensor.size);
  LocalSizes local;
  local.heads = spec.heads / tensor.size;
  local.kv_begin = tensor.index * spec.kv_heads / tensor.size;
  if (tensor.size > spec.kv_heads) {
    local.kv_heads = 1;
    local.kv_sharers = tensor.size / spec.kv_heads;
    local.kv_sharer = tensor.index % local.kv_sharers;
  } else {
    local.kv_heads = spec.kv_heads / tensor.size;
  }
  local.ffn = spec.ffn / tensor.size;
  local.vocabulary_rows = padded_vocabulary(spec, tensor.size) / tensor.size;
  local.vocabulary_begin = tensor.index * local.vocabulary_rows;
  return local;
}

void check_tensor_parallel(const ModelSpec& spec, const TensorShard& tensor, int64_t rows) {
  const int64_t ranks = tensor.size;
  if (ranks < 1) {
    throw_config_error("parallel.tensor = {}: must be at least 1", ranks);
  }
  const int64_t nearest = nearest_fit(spec, ranks);
  if (spec.heads % ranks != 0) {
    throw_config_error(
        "parallel.tensor = {}: must divide model.heads = {}; the nearest that fits this model is "
        "{}",
        ranks, spec.heads, nearest);
  }
  if (!splits_kv_heads(spec, ranks)) {
    throw_config_error(
        "parallel.tensor = {}: must divide model.kv_heads = {} or be a multiple of it; the nearest "
        "that fits this model is {}",
        ranks, spec.kv_heads, nearest);
  }
  if (spec.ffn % ranks != 0) {
    throw_config_error(
        "parallel.tensor = {}: must divide model.ffn = {}; the nearest that fits this model is {}",
        ranks, spec.ffn, nearest);
  }
  if (tensor.splits_rows() && rows % ranks != 0) {
    throw_config_error(
        "parallel.sequence_parallel = true: parallel.tensor = {} must divide the {} rows of a "
        "microbatch (train.microbatch * train.sequence / parallel.context), as it divides {} "
        "and {}; change these or set parallel.sequence_parallel = false",
        ranks, rows, rows < ranks ? ranks : rows / ranks * ranks,
        rows < ranks ? 2 * ranks : (rows / ranks + 1) * ranks);
  }
}

}  // namespace braid
