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

/// The share of a decay between two steps that is done.
double progress(int64_t begin, int64_t end, int64_t step) {
  const auto done = static_cast<double>(std::max<int64_t>(0, step - begin));
  return std::min(1.0, done / static_cast<double>(std::max<int64_t>(1, end - begin)));
}

}  // namespace

double learning_rate_at(const LearningRateSpec& rate, int64_t step) {
  if (step <= rate.warmup_steps) {
    return rate.highest * static_cast<double>(step) / static_cast<double>(rate.warmup_steps);
  }
  const auto between = [&](double share) {
    return rate.lowest + (rate.highest - rate.lowest) * share;
  };
  const int64_t end = rate.decay_steps == 0 ? rate.num_steps : rate.decay_steps;
  switch (rate.schedule) {
    case RateSchedule::kConstant:
      return rate.highest;
    case RateSchedule::kInverseSqrt:
      return std::max(
          rate.lowest,
          rate.highest * std::sqrt(static_cast<double>(std::max<int64_t>(rate.warmup_steps, 1)) /
                                   static_cast<double>(step)));
    case RateSchedule::kWsd: {
      const int64_t begin = std::max(rate.warmup_steps, rate.num_steps - rate.decay_steps);
      return step <= begin
                 ? rate.highest
                 : between(remaining(rate.decay_shape, progress(begin, rate.num_steps, step)));
    }
    case RateSchedule::kCosine:
      return between(remaining(DecayShape::kCosine, progress(rate.warmup_steps, end, step)));
    case RateSchedule::kLinear:
      return between(remaining(DecayShape::kLinear, progress(rate.warmup_steps, end, step)));
    case RateSchedule::kPolynomial:
      return between(std::pow(1.0 - progress(rate.warmup_steps, end, step), rate.power));
  }
  throw_internal_error("no schedule of learning rates");
}

}  // namespace braid
