#include "sim/goodput.h"

#include <algorithm>
#include <cmath>

namespace braid {

Goodput goodput_at(const FailureModel& model, double interval_s, double restart_s) {
  const double mean = model.mean_s();
  // Time per interval: every failure in it, or in a restart, begins it anew.
  const double spent =
      mean * std::exp(restart_s / mean) * std::expm1((interval_s + model.save_s) / mean);
  Goodput goodput{
      .interval_s = interval_s, .useful = interval_s / spent, .saves = model.save_s / spent};
  goodput.failures = 1.0 - goodput.useful - goodput.saves;
  return goodput;
}

double best_interval_s(const FailureModel& model) {
  const double mean = model.mean_s();
  const double save = model.save_s / mean;
  double low = 0;
  double high = 1;
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double x = 0.5 * (low + high);
    (1.0 - x > std::exp(-x - save) ? low : high) = x;
  }
  return low * mean;
}

int64_t spare_nodes(const FailureModel& model, double share) {
  const double in_repair = model.repair_s / model.mean_s();
  if (in_repair == 0) {
    return 1;
  }
  // So far below the mean that nothing is left out; one by one from 0 the chances would underflow.
  constexpr double kDeviations = 40;
  auto others = static_cast<int64_t>(
      std::max(0.0, std::floor(in_repair - kDeviations * std::sqrt(in_repair))));
  double at_most = 0;
  for (;; ++others) {  // chances add up to 1, which is above the share
    const auto count = static_cast<double>(others);
    at_most += std::exp(count * std::log(in_repair) - in_repair - std::lgamma(count + 1));
    if (at_most >= share) {
      return others + 1;
    }
  }
}

}  // namespace braid
