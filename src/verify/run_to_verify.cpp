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

}  // namespace

RunSpec run_to_verify(const RunConfig& config, int64_t tokenizer_vocabulary) {
  check_ranks(config);
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
