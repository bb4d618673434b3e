#include "data/blend_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/errors.h"

namespace braid {
namespace {

/// NumPy's order of a float64 sum: up to 7 numbers one by one, up to 128 in eight partial sums, and
/// more in halves of multiples of 8.
double numpy_sum(std::span<const double> values) {
  constexpr size_t kLanes = 8;
  constexpr size_t kBlock = 128;
  double sum = 0;
  if (values.size() > kBlock) {
    const size_t half = values.size() / 2 / kLanes * kLanes;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  size_t i = 0;
  if (values.size() >= kLanes) {
    std::array<double, kLanes> lanes{};
    for (; i + kLanes <= values.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += values[i + lane];
      }
    }
    sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
          ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  for (; i < values.size(); ++i) {
    sum += values[i];
  }
  return sum;
}

}  // namespace

std::vector<double> normalized_weights(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  check(sum > 0 && std::isfinite(sum), "weights with a sum of {}", sum);
  std::vector<double> shares;
  for (const double weight : weights) {
    shares.push_back(weight / sum);
  }
  return shares;
}

std::vector<int64_t> samples_per_corpus(std::span<const double> shares, int64_t num_samples) {
  constexpr double kWithSurplus = 1.005;
  std::vector<int64_t> counts;
  for (const double share : shares) {
    const double needed = std::ceil(static_cast<double>(num_samples) * share);
    counts.push_back(static_cast<int64_t>(std::ceil(needed * kWithSurplus)));
  }
  return counts;
}

BlendOrder build_blend_order(std::span<const double> shares, int64_t num_samples) {
  check(!shares.empty() && shares.size() <= std::numeric_limits<int16_t>::max(),
        "a blend of {} corpora", shares.size());
  const std::vector<double> normalized = normalized_weights(shares);
  std::vector<int64_t> taken(shares.size(), 0);
  BlendOrder order;
  order.corpus.reserve(static_cast<size_t>(num_samples));
  order.sample.reserve(static_cast<size_t>(num_samples));
  for (int64_t i = 0; i < num_samples; ++i) {
    const auto position = static_cast<double>(std::max<int64_t>(i, 1));
    size_t chosen = 0;
    double largest = -std::numeric_limits<double>::infinity();
    for (size_t corpus = 0; corpus < shares.size(); ++corpus) {
      const double lacking = normalized[corpus] * position - static_cast<double>(taken[corpus]);
      if (lacking > largest) {
        largest = lacking;
        chosen = corpus;
      }
    }
    order.corpus.push_back(static_cast<int16_t>(chosen));
    order.sample.push_back(taken[chosen]++);
  }
  return order;
}

}  // namespace braid
