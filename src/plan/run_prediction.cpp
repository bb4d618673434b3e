#include "plan/run_prediction.h"

#include <numeric>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "config/reference.h"
#include "model/model_spec.h"
#include "plan/pass_records.h"
#include "trace/peer_waits.h"

namespace braid {
namespace {

Timeline timeline_of_all(const SimulatedRun& run) {
  std::vector<int> ranks(static_cast<size_t>(run.spec().mesh.num_ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  Timeline timeline = run.timeline(ranks);
  find_peer_waits(timeline);
  return timeline;
}

}  // namespace

Prediction compare_with_measured(const SimulatedRun& run, const MeasuredSteps& measured) {
  check(!measured.traced.empty(), "no traced step to compare with");
  std::vector<StepSummary> steps;
  for (const TracedStep& step : measured.traced) {
    steps.push_back(step.summary);
  }
  return {.cost = run.model().description(),
          .num_steps = static_cast<int64_t>(steps.size()),
          .measured = mean_step(steps),
          .predicted = summarize_step(timeline_of_all(run)),
          .measured_host_ns = measured.median_step_ns,
          .predicted_host_ns = static_cast<double>(run.step_ns())};
}

ReportInput predicted_step(const SimulatedRun& run, std::string title) {
  const RankPlan& first = run.plan().ranks.front();
  ReportInput report;
  report.title = std::move(title);
  report.config_toml = to_toml(run.spec().config);
  report.model = describe_model(run.spec().model);
  report.passes = pass_records(run.plan().ranks);
  report.memory = first.memory;
  report.timeline = timeline_of_all(run);
  return report;
}

}  // namespace braid
