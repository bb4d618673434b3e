#include "sim/step_clock.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "sim/op_family.h"

namespace braid {
namespace {

// Fitted to the steps of bench/gpu/emulated_h200.md, whose mix goes from products alone to two
// thirds attention and a pipeline's waits.

/// Power grows with this power of the clock, since voltage follows it in part.
constexpr double kPowerExponent = 2.5;
/// The clock of attention alone, relative to that of products alone.
constexpr double kAttentionClock = 1.15;
/// Power as parts of the limit.
constexpr double kPowerOfMemory = 0.7;
constexpr double kPowerOfWaiting = 0.15;
/// Clocks are multiples of this, so that rounding errors of other machines change none.
constexpr double kClockStep = 1.0 / 1024;

/// Mean power of the step as a part of the limit, less one, times the time of the step.
double excess_power(const ComputeTimes& times, double clock) {
  const double products = times.products / clock;
  const double attention = times.attention * kAttentionClock / clock;
  const double power = std::pow(clock, kPowerExponent);
  return products * (power - 1) +
         attention * (power / std::pow(kAttentionClock, kPowerExponent) - 1) +
         times.memory_bound * (kPowerOfMemory - 1) + times.waiting * (kPowerOfWaiting - 1);
}

}  // namespace

ComputeTimes compute_times(const Program& program, std::span<const TaskTimes> times,
                           int64_t step_ns) {
  check(times.size() == program.tasks.size(), "{} tasks with {} times", program.tasks.size(),
        times.size());
  std::vector<OpFamily> families;  // few specs, perhaps millions of tasks
  for (const OpSpec& spec : program.specs.all()) {
    families.push_back(family_of(spec));
  }
  ComputeTimes sums;
  double all = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    const OpFamily family = families[program.tasks[i].spec.index()];
    if (!computes_on_device(family)) {
      continue;
    }
    const auto ns = static_cast<double>(times[i].end_ns - times[i].start_ns);
    double& sum = family == OpFamily::kGemm        ? sums.products
                  : family == OpFamily::kAttention ? sums.attention
                                                   : sums.memory_bound;
    sum += ns;
    all += ns;
  }
  sums.waiting = std::max(0.0, static_cast<double>(step_ns) - all);
  return sums;
}

double step_clock(const DeviceSpec& device, const ComputeTimes& times) {
  double clock = 1;
  while (clock + kClockStep <= device.most_clock && excess_power(times, clock + kClockStep) <= 0) {
    clock += kClockStep;
  }
  return clock;
}

std::vector<double> rank_clocks(const DeviceSpec& device, const RankPrograms& ranks,
                                const SimResult& result) {
  if (device.most_clock == 1) {
    return {};
  }
  std::vector<double> by_class;
  for (const SimRank& rank : result.ranks) {
    by_class.push_back(
        step_clock(device, compute_times(*ranks.programs[rank.program],
                                         times_of(ranks, result, rank), result.step_ns)));
  }
  std::vector<double> by_rank;
  for (const uint32_t kind : result.alike.kind_of) {
    by_rank.push_back(by_class[kind]);
  }
  return by_rank;
}

ClockedResult simulate_at_clock(const MatchedPrograms& programs, const CostModel& model,
                                const SimOptions& options, double routed_load) {
  ClockedResult clocked{.result = simulate(programs, model, options, routed_load),
                        .rank_clock = {}};
  clocked.rank_clock = rank_clocks(model.cluster().device, programs.ranks(), clocked.result);
  if (!clocked.rank_clock.empty()) {
    clocked.result = {};  // its memory
    clocked.result =
        simulate(programs, model, options, routed_load, {.rank_clock = clocked.rank_clock});
  }
  return clocked;
}

double clock_change(OpFamily family, double clock) {
  switch (family) {
    case OpFamily::kGemm:
      return 1 / clock;
    case OpFamily::kAttention:
      return kAttentionClock / clock;
    default:
      return 1;
  }
}

}  // namespace braid
