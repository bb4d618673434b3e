#include "trace/step_summary.h"

#include <map>
#include <utility>

#include "trace/breakdown.h"

namespace braid {
namespace {

double as_double(int64_t value) {
  return static_cast<double>(value);
}

CommunicationSummary summary_of(const CommunicationTime& time) {
  return {.total_ns = as_double(time.total_ns),
          .exposed_ns = as_double(time.exposed_ns),
          .exposed_wait_ns = as_double(time.exposed_wait_ns)};
}

StepSummary summarize_rank(const RankTimes& times, const StepBreakdown& breakdown) {
  StepSummary rank{.step_ns = as_double(times.step_ns),
                   .compute_ns = as_double(times.compute_ns),
                   .copy_ns = as_double(times.copy_ns),
                   .idle_ns = as_double(times.bubble_ns),
                   .communication = summary_of(times.communication),
                   .by_group = {},
                   .by_phase = {},
                   .ops = {}};
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    rank.by_group[kind] = summary_of(times.by_group[kind]);
  }
  for (size_t phase = 0; phase < kNumPhases; ++phase) {
    rank.by_phase[phase] = summary_of(times.by_phase[phase]);
  }
  for (const OpTime& op : breakdown.ops) {
    rank.ops.push_back(
        {.op = op.op, .num_tasks = as_double(op.num_tasks), .busy_ns = as_double(op.busy_ns)});
  }
  return rank;
}

void add(CommunicationSummary& sum, const CommunicationSummary& one, double share) {
  sum.total_ns += share * one.total_ns;
  sum.exposed_ns += share * one.exposed_ns;
  sum.exposed_wait_ns += share * one.exposed_wait_ns;
}

}  // namespace

StepSummary summarize_step(const Timeline& timeline) {
  const std::vector<RankTimes> times = analyze_timeline(timeline);
  const std::vector<StepBreakdown> breakdowns = break_down(timeline);
  std::vector<StepSummary> ranks;
  for (size_t i = 0; i < times.size(); ++i) {
    ranks.push_back(summarize_rank(times[i], breakdowns[i]));
  }
  return mean_step(ranks);
}

StepSummary mean_step(std::span<const StepSummary> steps) {
  const double share = steps.empty() ? 0.0 : 1.0 / static_cast<double>(steps.size());
  StepSummary mean;
  std::map<std::string, OpSummary> ops;
  for (const StepSummary& step : steps) {
    mean.step_ns += share * step.step_ns;
    mean.compute_ns += share * step.compute_ns;
    mean.copy_ns += share * step.copy_ns;
    mean.idle_ns += share * step.idle_ns;
    add(mean.communication, step.communication, share);
    for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
      add(mean.by_group[kind], step.by_group[kind], share);
    }
    for (size_t phase = 0; phase < kNumPhases; ++phase) {
      add(mean.by_phase[phase], step.by_phase[phase], share);
    }
    for (const OpSummary& op : step.ops) {
      OpSummary& sum = ops[op.op];
      sum.op = op.op;
      sum.num_tasks += share * op.num_tasks;
      sum.busy_ns += share * op.busy_ns;
    }
  }
  for (auto& [name, op] : ops) {
    mean.ops.push_back(std::move(op));
  }
  return mean;
}

}  // namespace braid
