#include "verify/run_to_verify.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

/// Each rank is a few threads of this process.
void check_ranks(const RunConfig& config) {
  constexpr int64_t kMostRanks = 512;
  if (config.parallel.ranks > kMostRanks) {
    const int64_t two_data_ranks = 2 * config.parallel.ranks / config.parallel.data;
    throw_config_error(
        "parallel.ranks = {}: braid verify runs ranks as threads of this machine, at most {}; {}",
        config.parallel.ranks, kMostRanks,
        two_data_ranks <= kMostRanks
            ? fmt::format(
                  "two data ranks are enough: --set parallel.data=2 --set parallel.ranks={}",
                  two_data_ranks)
            : "set fewer tensor, context or pipeline ranks");
  }
}

/// Experts with a capacity drop rows of the tokens of a rank, which must be those of one rank.
void check_capacity(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t tensor = parallel.sequence_parallel ? parallel.tensor : 1;
  if (config.moe.expert_capacity > 0 && parallel.context * tensor > 1) {
    throw_config_error(
        "moe.expert_capacity = {}: {} ranks that share the tokens of a microbatch "
        "(parallel.context "
        "= {}, parallel.tensor = {}) drop apart, and one rank drops other rows; set "
        "moe.expert_capacity = 0 to verify this layout",
        config.moe.expert_capacity, parallel.context * tensor, parallel.context, parallel.tensor);
  }
}

}  // namespace

RunSpec run_to_verify(const RunConfig& config, int64_t tokenizer_vocabulary) {
  check_ranks(config);
  check_capacity(config);
  resolve_run(config, tokenizer_vocabulary);  // throws for reasons of its own model only
  return resolve_run(shrunken(config), 0);
}

double loss_tolerance(const RunSpec& run) {
  const bool rounds_to_bf16 =
      run.dtype == DType::kBF16 || run.parallel.reduce_dtype == DType::kBF16;
  return rounds_to_bf16 ? 2e-2 : 1e-5;
}

const TensorDifference& worst_of(const std::vector<TensorDifference>& tensors) {
  return *std::max_element(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.difference < b.difference;
  });
}

}  // namespace braid
