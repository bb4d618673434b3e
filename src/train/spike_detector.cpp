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

bool SpikeScore::is_spike() const {
  return loss > kDeviations || grad_norm > kDeviations;
}

SpikeScore SpikeDetector::add(double loss, double grad_norm) {
  return {.loss = losses_.add(loss), .grad_norm = grad_norms_.add(grad_norm)};
}

double SpikeDetector::Recent::add(double value) {
  if (!std::isfinite(value)) {
    return std::numeric_limits<double>::infinity();
  }
  const double score = score_of(value);
  values_.push_back(value);
  if (values_.size() > kMaxSteps) {
    values_.pop_front();
  }
  return score;
}

double SpikeDetector::Recent::score_of(double value) const {
  if (values_.size() < kMinSteps) {
    return 0;
  }
  double sum = 0;
  double squares = 0;
  for (const double one : values_) {
    sum += one;
    squares += one * one;
  }
  const auto count = static_cast<double>(values_.size());
  const double mean = sum / count;
  const double deviation = std::max(std::sqrt(std::max(0.0, squares / count - mean * mean)),
                                    kLeastDeviation * std::abs(mean));
  if (deviation > 0) {
    return (value - mean) / deviation;
  }
  return value > mean ? std::numeric_limits<double>::max() : 0;
}

}  // namespace braid
