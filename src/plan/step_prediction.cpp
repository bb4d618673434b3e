#include "plan/step_prediction.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "model/model_spec.h"
#include "plan/step_range.h"
#include "sim/predict.h"

namespace braid {
namespace {

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// "155 ms matrix products, 101 ms attention".
std::string families_text(const SerialPrediction& prediction) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < kNumOpFamilies; ++i) {
    if (prediction.family_ns[i] > 0) {
      parts.push_back(fmt::format("{} {}", format_duration(seconds(prediction.family_ns[i])),
                                  family_name(static_cast<OpFamily>(i))));
    }
  }
  return join(parts, ", ");
}

std::string sources_text(const SerialPrediction& prediction) {
  const int64_t all_ns = prediction.compute_ns() + prediction.communication_ns();
  std::vector<std::string> parts;
  for (size_t i = 0; i < kNumCostSources; ++i) {
    if (prediction.source_ns[i] > 0) {
      parts.push_back(fmt::format("{:.1f}% {}",
                                  100.0 * seconds(prediction.source_ns[i]) / seconds(all_ns),
                                  cost_source_name(static_cast<CostSource>(i))));
    }
  }
  return join(parts, ", ");
}

/// The training program of the planned rank whose tasks take longest: a stage may have next to
/// none.
const Program& busiest_program(const RunPlan& plan, const CostModel& model) {
  const RankPlan& busiest = *std::ranges::max_element(plan.ranks, {}, [&](const RankPlan& rank) {
    return predict_serial(rank.programs[kTrainProgram], model).step_ns();
  });
  return busiest.programs[kTrainProgram];
}

}  // namespace

std::string describe_skewed_prediction(const RunPlan& plan, const CostModel& model,
                                       const RoutingLoads& loads) {
  const Program& program = busiest_program(plan, model);
  return describe_skewed_step(plan.run, loads, predict_serial(program, model).step_ns(),
                              predict_serial(program, model, loads.busiest).step_ns());
}

std::string describe_prediction(const RunPlan& plan, const CostModel& model) {
  const RunSpec& run = plan.run;
  const Program& program = busiest_program(plan, model);
  const SerialPrediction prediction = predict_serial(program, model);
  const StepRange range = step_range(run, model, [&](const PriceChanges& changes) {
    return predict_serial(program, model, 1.0, changes).step_ns();
  });
  const double step_s = seconds(prediction.step_ns());
  const auto tokens = static_cast<double>(run.tokens_per_step());
  const double flops_per_s =
      tokens * train_flops_per_token(run.model, run.config.train.sequence) / step_s;
  const double peak = model.cluster().device.peak_flops_per_s(run.dtype) *
                      static_cast<double>(run.mesh.num_ranks());
  return fmt::format(
      "cost     {}\n"
      "predict  {} = {}, {} on the host\n"
      "predict  {} per step, tasks{} one after the other: {} tokens/s, MFU {:.1f}%\n"
      "range    {}\n"
      "source   {}\n",
      model.description(), format_duration(step_s), families_text(prediction),
      format_duration(seconds(prediction.step_overhead_ns)), format_duration(step_s),
      plan.ranks.size() > 1 ? fmt::format(" of rank {}, the busiest,", program.rank) : "",
      format_count(static_cast<int64_t>(tokens / step_s)), 100.0 * flops_per_s / peak,
      describe_range(range), sources_text(prediction));
}

}  // namespace braid
