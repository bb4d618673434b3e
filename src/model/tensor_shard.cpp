#include "model/tensor_shard.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>

#include "base/errors.h"
#include "model/blocks/registry.h"

namespace braid {
namespace {

constexpr int64_t kMaxRanks = 1 << 16;  // of parallel.tensor

/// Why the first block that cannot be shared by `ranks` ranks cannot; nullopt if all can.
std::optional<std::string> fault_of(const ModelSpec& spec, int64_t ranks) {
  for (const BlockDefinition* const block : all_blocks()) {
    if (spec.layers.has(*block)) {
      if (auto fault = block->tensor_fault(spec, ranks)) {
        return fault;
      }
    }
  }
  return std::nullopt;
}

/// The number of tensor ranks nearest to `wanted` over which the model can be split; the smaller of
/// two that are equally near.
int64_t nearest_fit(const ModelSpec& spec, int64_t wanted) {
  int64_t best = 1;
  // The search ends at twice `wanted`: from there on, one rank is at least as near.
  for (int64_t ranks = 2; ranks < std::min(2 * wanted, kMaxRanks); ++ranks) {
    if (std::abs(ranks - wanted) < std::abs(best - wanted) && !fault_of(spec, ranks)) {
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

LocalVocabulary local_vocabulary(const ModelSpec& spec, const TensorShard& tensor) {
  const int64_t rows = padded_vocabulary(spec, tensor.size) / tensor.size;
  return {.begin = tensor.index * rows, .rows = rows};
}

void check_tensor_parallel(const ModelSpec& spec, const TensorShard& tensor, int64_t rows) {
  const int64_t ranks = tensor.size;
  if (ranks < 1) {
    throw_config_error("parallel.tensor = {}: must be at least 1", ranks);
  }
  if (const auto fault = fault_of(spec, ranks)) {
    throw_config_error("parallel.tensor = {}: {}; the nearest that fits this model is {}", ranks,
                       *fault, nearest_fit(spec, ranks));
  }
  if (spec.layers.has(kMoeBlock) && tensor.is_split() && !tensor.sequence_parallel) {
    throw_config_error(
        "parallel.sequence_parallel = false: each of parallel.tensor = {} ranks routes its own "
        "tokens to the experts; set parallel.sequence_parallel = true",
        ranks);
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
