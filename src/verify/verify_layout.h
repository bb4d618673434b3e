#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/run_spec.h"

namespace braid {

/// The run on a very small model and batch, under the same layout: as many layers, heads, ranks and
/// stages; narrow heads and feed-forward layers, a short sequence, a small vocabulary that needs
/// padding, and no more microbatches than needed to show all of the schedule. The configuration
/// must be validated and resolved. Throws ConfigError for layouts that cannot run.
RunConfig shrunken(const RunConfig& config);

struct VerifyOptions {
  int64_t steps = 3;     ///< optimizer steps to compare
  uint64_t seed = 1234;  ///< of weights and tokens
  int threads_per_rank = 1;
  /// Called repeatedly with the finished fraction, from 0 to 1.
  std::function<void(double)> progress = {};
};

/// The difference of a tensor from that of one rank: largest difference of an element over the
/// largest element of the tensor.
struct TensorDifference {
  std::string name;
  double difference = 0;
};

struct LayoutComparison {
  /// Gradients of one step in f64, where rounding is about 1e-15: a larger difference is a
  /// different computation.
  std::vector<TensorDifference> gradients;
  double loss_f64 = 0;  ///< relative difference
  /// Training in the dtype of the run.
  std::vector<double> losses;  ///< of this layout, by step
  std::vector<double> one_rank_losses;
  std::vector<TensorDifference> weights;  ///< after the last step
  double grad_norm = 0;                   ///< largest relative difference of a step

  double worst_gradient() const;
  double worst_weight() const;
  double worst_loss() const;  ///< relative
};

/// Runs the layout of `run` and one rank with the same weights and tokens, and compares losses,
/// every gradient and every updated weight. `run` is usually `shrunken`; its ranks have room for
/// all rows of experts, whatever moe.capacity says. Throws DeviceError as the steps do.
LayoutComparison compare_with_one_rank(const RunSpec& run, const VerifyOptions& options);

}  // namespace braid
