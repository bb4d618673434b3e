#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "plan/simulated_run.h"
#include "sim/goodput.h"

namespace braid {

/// What failures leave of a month of a simulated run.
struct GoodputForecast {
  FailureModel model;
  int node_devices = 1;
  double step_s = 0;
  double tokens_per_s = 0;  ///< of the whole run while it computes
  Goodput with_spares;      ///< with a checkpoint after each so many whole steps
  Goodput without_spares;   ///< the same interval; each failure waits for its repair
  int64_t spares = 0;       ///< nodes, for 99% of failures

  int64_t interval_steps() const;
  double tokens_per_month(const Goodput& goodput) const;  ///< of 30 days
};

/// `model.devices` is set to the ranks of the run. Throws ConfigError if failures come so often
/// that nearly nothing would be left.
GoodputForecast forecast_goodput(const SimulatedRun& run, FailureModel model);

/// Three lines: failures, goodput, spares.
std::string describe_goodput(const GoodputForecast& forecast);

/// docs/simulator.md lists its keys.
nlohmann::ordered_json goodput_json(const GoodputForecast& forecast);

}  // namespace braid
