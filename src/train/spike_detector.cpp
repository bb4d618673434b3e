#include "train/spike_detector.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace braid {
namespace {

constexpr size_t kMinSteps = 16;
constexpr size_t kMaxSteps = 32;
constexpr double kDeviations = 4;
constexpr double kLeastDeviation = 0.02;  // of the mean: a loss that hardly moves has no spikes

}  // namespace

bool SpikeDetector::add(double loss, double grad_norm) {
  const bool of_loss = losses_.add(loss);
  const bool of_norm = grad_norms_.add(grad_norm);
  return of_loss || of_norm;
}

bool SpikeDetector::Recent::add(double value) {
  if (!std::isfinite(value)) {
    return true;
  }
  const bool is_spike = value > limit();
  values_.push_back(value);
  if (values_.size() > kMaxSteps) {
    values_.pop_front();
  }
  return is_spike;
}

double SpikeDetector::Recent::limit() const {
  if (values_.size() < kMinSteps) {
    return std::numeric_limits<double>::infinity();
  }
  double sum = 0;
  double squares = 0;
  for (const double value : values_) {
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(values_.size());
  const double mean = sum / count;
  const double deviation = std::sqrt(std::max(0.0, squares / count - mean * mean));
  return mean + kDeviations * std::max(deviation, kLeastDeviation * std::abs(mean));
}

}  // namespace braid
