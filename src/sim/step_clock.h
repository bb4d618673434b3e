#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"
#include "ops/op_traits.h"
#include "sim/device_spec.h"
#include "sim/simulate.h"
#include "trace/task_timeline.h"

/// The clock of a step. Prices of kernels are times of the kernel alone under steady load, in which
/// the power limit sets a clock of its own for each kind. In a step all run at one clock, at which
/// the mix of kernels and waits needs as much power as the limit allows: products are faster beside
/// kernels that need less, and attention is slower beside products. Kernels that memory bounds take
/// as long at any clock. docs/simulator.md, "One clock for a step", has the measurements.
namespace braid {

/// Of one rank in a step: how long kernels of each kind run, and for how long none does, ns.
struct ComputeTimes {
  double products = 0;
  double attention = 0;
  double memory_bound = 0;
  double waiting = 0;
};

/// `times`: of the tasks of `program`, which end by `step_ns`.
ComputeTimes compute_times(const Program& program, std::span<const TaskTimes> times,
                           int64_t step_ns);

/// The clock at which the kernels and waits need the power limit, relative to that of products
/// alone: at most DeviceSpec::most_clock. 1 for a device without a figure.
double step_clock(const DeviceSpec& device, const ComputeTimes& times);

/// The clock of every rank in `result`, relative to that of products alone; nothing for a device
/// without a figure.
std::vector<double> rank_clocks(const DeviceSpec& device, const RankPrograms& ranks,
                                const SimResult& result);

struct ClockedResult {
  SimResult result;
  std::vector<double> rank_clock;  ///< as of `rank_clocks`, for PriceChanges
};

/// Simulates the programs with each kernel at the clock that it has alone, and again at the clocks
/// that follow.
ClockedResult simulate_at_clock(const MatchedPrograms& programs, const CostModel& model,
                                const SimOptions& options = {}, double routed_load = 1.0);

/// The factor of the time of kernels of a family at that clock.
double clock_change(OpFamily family, double clock);

}  // namespace braid
