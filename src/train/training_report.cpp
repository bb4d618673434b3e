#include "train/training_report.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "config/load.h"
#include "config/reference.h"
#include "plan/describe_layout.h"
#include "plan/parallel_setup.h"
#include "plan/pass_records.h"
#include "plan/unit_memory.h"
#include "trace/breakdown.h"

namespace braid {

void TrainingReport::add(int64_t step, Timeline timeline) {
  for (RankTimeline& rank : timeline.ranks) {
    rank.step = step;
  }
  std::erase_if(timelines_, [&](const Timeline& one) { return one.ranks.front().step >= step; });
  timelines_.push_back(std::move(timeline));
}

/// The plan of a rank's training step.
const RankPlan* TrainingReport::plan_of(int rank) const {
  const std::vector<RankPlan>& ranks = source_.plan.ranks;
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankPlan& plan) {
    return plan.programs[kTrainProgram].rank == rank;
  });
  return found == ranks.end() ? nullptr : &*found;
}

std::vector<MemoryCurve> TrainingReport::memory_over_time(const Timeline& timeline) const {
  constexpr size_t kMaxPoints = 800;  // charts have fewer pixels
  std::vector<MemoryCurve> curves;
  for (const RankTimeline& rank : timeline.ranks) {
    const RankPlan* const plan = plan_of(rank.rank);
    // Programs with more room than at this step may have other tasks.
    if (plan != nullptr && plan->programs[kTrainProgram].tasks.size() == rank.tasks.size()) {
      curves.push_back(memory_curve(plan->programs[kTrainProgram], rank, plan->memory, kMaxPoints));
    }
  }
  return curves;
}

std::vector<TraceCounter> TrainingReport::memory_counters() const {
  std::vector<TraceCounter> counters;
  for (size_t step = 0; step < timelines_.size(); ++step) {
    for (const MemoryCurve& curve : memory_over_time(timelines_[step])) {
      TraceCounter counter{.step = step,
                           .rank = curve.rank,
                           .name = "bytes in use in the step",
                           .time_ns = curve.time_ns,
                           .values = std::vector<int64_t>(curve.time_ns.size(), 0)};
      for (const std::vector<int64_t>& of_class : curve.live_bytes) {
        std::ranges::transform(counter.values, of_class, counter.values.begin(), std::plus());
      }
      counters.push_back(std::move(counter));
    }
  }
  return counters;
}

ReportInput TrainingReport::input(const Metrics& metrics) const {
  const RunConfig& config = source_.plan.run.config;
  const RunPlan& plan = source_.plan;
  ReportInput report{.title = std::filesystem::path(config.logging.run_folder).filename().string(),
                     .config_toml = to_toml(config),
                     .model = describe_model(plan.run.model),
                     .passes = pass_records(plan.ranks),
                     .memory = plan.ranks.front().memory,
                     .steps = metrics.steps,
                     .evaluations = metrics.evaluations,
                     .fp8 = metrics.fp8,
                     .experts = metrics.experts,
                     .unigram_entropy = source_.unigram_entropy,
                     .timeline = timelines_.empty() ? Timeline{} : timelines_.back()};
  for (const Timeline& timeline : timelines_) {
    report.traced_steps.push_back({timeline.ranks.front().step, summarize_step(timeline)});
  }
  report.memory_over_time = memory_over_time(report.timeline);
  report.unit_memory = unit_memory(plan.ranks.front().programs[kTrainProgram]);
  if (plan.run.mesh.num_ranks() > 1) {
    report.layout = describe_layout(source_.plan.run);
    report.stages = stage_table(plan);
    report.jobs = pipeline_jobs(source_.plan.run);
  }
  return report;
}

RunReport TrainingReport::save(const Metrics& metrics) const {
  const std::string path = source_.plan.run.config.logging.run_folder + "/" + kRunReportFile;
  RunReport report = run_report(input(metrics));
  if (source_.first_step > 1 && timelines_.empty()) {  // keeps the trace of an earlier process
    report = with_earlier_trace(
        std::move(report), path,
        fmt::format("traced before the run was resumed after step {}", source_.first_step - 1));
  }
  save_run_report(path, report);
  return report;
}

std::string TrainingReport::write(const Metrics& metrics) const {
  const std::string& folder = source_.plan.run.config.logging.run_folder;
  if (!timelines_.empty()) {
    write_chrome_trace(folder + "/trace.json", timelines_, memory_counters());
  }
  const RunReport report = save(metrics);
  const std::string path = folder + "/report.html";
  write_file_atomically(path, report_html({&report, 1}));
  return path;
}

}  // namespace braid
