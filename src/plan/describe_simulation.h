#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/describe_goodput.h"
#include "plan/routing_loads.h"
#include "plan/simulated_run.h"

namespace braid {

/// Describes the time of a simulated step and where it is spent:
///   step      14.4 s: 1136 tokens/s and 510.4 TFLOP/s on each of 64 ranks, MFU 51.6%
///   compute   85.8% of the step, mean of all ranks
///   exposed   10.2% of the step with communication that nothing hides: tensor 9.6% (of 12.0%), ...
///   bubble    4.0% idle: warm-up 0.2%, steady 3.5%, cool-down 0.3%
/// followed by a table with one line per pipeline stage. docs/simulator.md explains each figure.
std::string describe_simulation(const SimulatedRun& run);

/// The time of the step with these loads of ranks instead of equal ones.
struct SkewedStep {
  RoutingLoads loads;
  int64_t step_ns = 0;
};

/// The same as a JSON object, with the skewed step and the forecast of a month if there are any.
/// docs/simulator.md lists its keys.
std::string simulation_json(const SimulatedRun& run,
                            const std::optional<SkewedStep>& skewed = std::nullopt,
                            const std::optional<GoodputForecast>& goodput = std::nullopt);

}  // namespace braid
