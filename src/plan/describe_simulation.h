#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/describe_goodput.h"
#include "plan/routing_loads.h"
#include "plan/simulated_run.h"
#include "plan/step_gains.h"
#include "plan/step_path.h"
#include "plan/step_range.h"

namespace braid {

/// The time of the step with these loads of ranks instead of equal ones.
struct SkewedStep {
  RoutingLoads loads;
  int64_t step_ns = 0;
};

/// The time of the step on a machine of which a part is slow.
struct SlowStep {
  SlowParts parts;
  int64_t step_ns = 0;
};

/// What is known of a simulated step besides its figures, as far as it was asked for.
struct SimulationDetails {
  std::optional<StepRange> range = {};
  std::optional<SampledSteps> samples = {};
  std::optional<SlowStep> slow = {};
  std::optional<SkewedStep> skewed = {};
  std::optional<GoodputForecast> goodput = {};
  std::optional<StepPath> path = {};
  std::optional<StepGains> gains = {};
};

/// Describes the time of a simulated step and where it is spent:
///   step      14.4 s: 1136 tokens/s and 510.4 TFLOP/s on each of 64 ranks, MFU 51.6%
///   range     13.8 s to 15.5 s (-4.7% +7.1%): kernels -4.7% +4.9%, slowest device +3.4%, ...
///   compute   85.8% of the step, mean of all ranks
///   exposed   10.2% of the step with communication that nothing hides: tensor 9.6% (of 12.0%), ...
///   bubble    4.0% idle: warm-up 0.2%, steady 3.5%, cool-down 0.3%
/// followed by a table with one line per pipeline stage, and one of the causes of the step's time.
/// docs/simulator.md explains each figure.
std::string describe_simulation(const SimulatedRun& run, const SimulationDetails& details = {});

/// The same as a JSON object. docs/simulator.md lists its keys.
std::string simulation_json(const SimulatedRun& run, const SimulationDetails& details = {});

}  // namespace braid
