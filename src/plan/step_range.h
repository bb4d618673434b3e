#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/simulated_run.h"

namespace braid {

/// A reason why a step may take less or more time than simulated, and the step simulated at both
/// ends of it.
struct RangeSource {
  std::string_view what;
  int64_t low_ns = 0;
  int64_t high_ns = 0;
};

/// The range in which the time of a step is expected.
struct StepRange {
  int64_t low_ns = 0;
  int64_t middle_ns = 0;  ///< SimulatedRun::step_ns
  int64_t high_ns = 0;
  std::vector<RangeSource> sources;

  /// high / low - 1.
  double width() const;
};

/// Simulates the step at the ends of each source of RangeSpec and StackSpec: kernels at best and
/// typical efficiency, products of FP8 factors, links inside and between nodes, and what grows with
/// the cluster (the slowest device, congestion, jitter). The sources are independent, so their
/// differences from the middle add up as squares. `num_threads` 0: all of the machine.
StepRange step_range(const SimulatedRun& run, int num_threads = 0);

/// The same for steps of a run that another function times, with changed prices.
using StepTimer = std::function<int64_t(const PriceChanges& changes)>;
StepRange step_range(const RunSpec& run, const CostModel& model, const StepTimer& step_ns,
                     int num_threads = 0);

/// The mean of the largest of `count` standard normal variates, to 0.02 from 2 on (Blom, 1958).
double mean_of_largest(int64_t count);

/// The standard normal variate below which a part `probability` of all lie; 0 < probability < 1.
/// Relative error below 1.2e-9 (Acklam, 2003).
double normal_quantile(double probability);

/// "13.9 s to 15.2 s: kernels -2.1% +2.3%, slowest device +1.8%, ...", the largest sources first.
std::string describe_range(const StepRange& range);

/// A machine of which a part is slow.
struct SlowParts {
  double node = 1;  ///< factor of the time of compute on the node of the busiest rank
  double link = 1;  ///< factor of the time of communication between that node and others; with one
                    ///< node, of communication inside it
};
int64_t step_ns_with(const SimulatedRun& run, const SlowParts& slow);

/// Steps of different machines of the same kind, at different times.
struct SampledSteps {
  int64_t count = 0;
  uint64_t seed = 0;
  int64_t median_ns = 0;
  int64_t p90_ns = 0;
};

/// Simulates `count` steps. For each, it draws the slowest device of each pipeline stage (its ranks
/// wait for each other), how much congestion there is (exponentially distributed, with the mean of
/// RangeSpec::congestion), and the jitter of the step. Equal seeds give equal results on any number
/// of threads.
SampledSteps sample_steps(const SimulatedRun& run, int64_t count, uint64_t seed,
                          int num_threads = 0);

}  // namespace braid
