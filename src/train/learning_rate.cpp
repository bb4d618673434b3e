#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

namespace braid {
namespace {

/// Share of the way from the minimum to the full rate when `progress` in [0, 1] of the decay is
/// done.
double remaining(std::string_view shape, double progress) {
  if (shape == "cosine") {
    return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return shape == "linear" ? 1.0 - progress : 1.0 - std::sqrt(progress);
}

}  // namespace

double learning_rate_at(const OptimizerConfig& config, int64_t num_steps, int64_t step) {
  if (step <= config.warmup_steps) {
    return config.learning_rate * static_cast<double>(step) /
           static_cast<double>(config.warmup_steps);
  }
  if (config.schedule == "constant") {
    return config.learning_rate;
  }
  const bool wsd = config.schedule == "wsd";
  const int64_t cosine_end = config.decay_steps == 0 ? num_steps : config.decay_steps;
  const int64_t begin =
      wsd ? std::max(config.warmup_steps, num_steps - config.decay_steps) : config.warmup_steps;
  const int64_t end = wsd ? num_steps : cosine_end;
  if (step <= begin) {
    return config.learning_rate;
  }
  const double progress = std::min(1.0, static_cast<double>(step - begin) /
                                            static_cast<double>(std::max<int64_t>(1, end - begin)));
  const double share = remaining(wsd ? std::string_view(config.decay_shape) : "cosine", progress);
  return config.min_learning_rate + (config.learning_rate - config.min_learning_rate) * share;
}

}  // namespace braid
