#include "sim/goodput.h"

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

int spare_nodes(const FailureModel& model, double share) {
  const double in_repair = model.repair_s / model.mean_s();
  double probability = std::exp(-in_repair);  // that so many others are in repair
  double at_most = probability;
  int others = 0;
  while (at_most < share && probability > 0) {
    ++others;
    probability *= in_repair / others;
    at_most += probability;
  }
  return others + 1;
}

}  // namespace braid
