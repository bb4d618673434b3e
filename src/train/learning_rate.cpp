#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"

namespace braid {
namespace {

/// The fraction between the minimum (0) and the full rate (1) when `progress` in [0, 1] of the
/// decay is done.
double remaining(DecayShape shape, double progress) {
  switch (shape) {
    case DecayShape::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case DecayShape::kLinear:
      return 1.0 - progress;
    case DecayShape::kOneMinusSqrt:
      return 1.0 - std::sqrt(progress);
  }
  throw_internal_error("no shape of decay");
}

}  // namespace

double learning_rate_at(const LearningRateSpec& rate, int64_t step) {
  if (step <= rate.warmup_steps) {
    return rate.highest * static_cast<double>(step) / static_cast<double>(rate.warmup_steps);
  }
  if (rate.schedule == RateSchedule::kConstant) {
    return rate.highest;
  }
  const bool wsd = rate.schedule == RateSchedule::kWsd;
  const int64_t cosine_end = rate.decay_steps == 0 ? rate.num_steps : rate.decay_steps;
  const int64_t begin =
      wsd ? std::max(rate.warmup_steps, rate.num_steps - rate.decay_steps) : rate.warmup_steps;
  const int64_t end = wsd ? rate.num_steps : cosine_end;
  if (step <= begin) {
    return rate.highest;
  }
  const double progress = std::min(1.0, static_cast<double>(step - begin) /
                                            static_cast<double>(std::max<int64_t>(1, end - begin)));
  const double share = remaining(wsd ? rate.decay_shape : DecayShape::kCosine, progress);
  return rate.lowest + (rate.highest - rate.lowest) * share;
}

}  // namespace braid
