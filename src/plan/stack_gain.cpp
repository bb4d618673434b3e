#include "plan/stack_gain.h"

#include <cmath>

#include "base/text.h"
#include "plan/row_exchange_setup.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "sim/device_file.h"

namespace braid {
namespace {

StepRange simulated_range(const RunSpec& run, const CostModel& model) {
  return step_range(SimulatedRun(run, model, {}, PlannedRanks::kOnePerStage));
}

std::string seconds_text(int64_t ns) {
  return format_duration(static_cast<double>(ns) * 1e-9);
}

std::string step_text(const StepRange& range) {
  return fmt::format("{} per step, {} to {}", seconds_text(range.middle_ns),
                     seconds_text(range.low_ns), seconds_text(range.high_ns));
}

}  // namespace

StackGain stack_gain(const RunSpec& run, const CostModel& braid, const std::string& stack) {
  Cluster cluster = braid.cluster();
  cluster.device = with_stack(cluster.device, stack);
  RunConfig config = with_exact_exchange(run.config);
  config.overlap.mode = cluster.device.stack.overlap;
  const auto model = make_analytic_model(cluster);
  return {.stack = cluster.device.stack.name,
          .description = cluster.device.stack.description,
          .theirs = simulated_range(resolve_again(run, config), *model),
          .braids = simulated_range(run, braid)};
}

std::string describe_stack_gain(const StackGain& gain) {
  const double part =
      1 - static_cast<double>(gain.braids.middle_ns) / static_cast<double>(gain.theirs.middle_ns);
  return fmt::format(
      "stack    {}: {} ({})\n"
      "braid    {}: {:.1f}% {} than under {}\n",
      gain.stack, step_text(gain.theirs), gain.description, step_text(gain.braids),
      100.0 * std::abs(part), part >= 0 ? "shorter" : "longer", gain.stack);
}

}  // namespace braid
