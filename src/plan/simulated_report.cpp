#include "plan/simulated_report.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "config/reference.h"
#include "plan/describe_layout.h"
#include "plan/pass_records.h"
#include "plan/run_plan.h"
#include "plan/unit_memory.h"
#include "report/run_file.h"
#include "trace/explain_exposed.h"
#include "trace/exposed.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

size_t num_tasks_of(const RankPlan& plan) {
  return plan.programs[kTrainProgram].tasks.size();
}

/// Selects `count` evenly spaced values, including the first and the last.
std::vector<int> spread(const std::vector<int>& values, size_t count) {
  if (count >= values.size()) {
    return values;
  }
  std::vector<int> chosen;
  for (size_t i = 0; i < count; ++i) {
    chosen.push_back(values[i * (values.size() - 1) / (count - 1)]);
  }
  return chosen;
}

const RankPlan& neediest(const RunPlan& plan) {
  return *std::max_element(plan.ranks.begin(), plan.ranks.end(),
                           [](const RankPlan& a, const RankPlan& b) {
                             return a.memory.peak_bytes() < b.memory.peak_bytes();
                           });
}

DevicePeaks peaks_of(const DeviceSpec& device) {
  return {.name = device.description,
          .flops_per_s = device.bf16_flops_per_s,
          .bytes_per_s = device.memory_bytes_per_s};
}

/// The last component of a path: "a" for "runs/a/".
std::string folder_name(const std::string& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

void prepare_report_folder(const std::string& folder) {
  if (fs::exists(fs::path(folder) / "metrics.jsonl")) {
    throw_config_error(
        "--report {}: this folder belongs to a run that trained (it has metrics.jsonl), and its "
        "report would be lost; give another folder, and compare with `braid report {} --compare`",
        folder, folder);
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw_data_error("--report {}: cannot make the folder: {}", folder, error.message());
  }
}

std::vector<MemoryCurve> memory_over_time(const SimulatedRun& run, const Timeline& timeline) {
  constexpr size_t kMaxPoints = 800;  // a chart has fewer pixels
  std::vector<MemoryCurve> curves;
  for (const RankTimeline& rank : timeline.ranks) {
    const RankPlan plan = run.plan_with_buffers(rank.rank);
    curves.push_back(memory_curve(plan.programs[kTrainProgram], rank, plan.memory, kMaxPoints));
  }
  return curves;
}

std::vector<int> ranks_to_show(const SimulatedRun& run, size_t max_tasks) {
  const std::vector<int> ranks = first_rank_of_stages(run.spec().mesh);
  const RankPrograms programs = run.rank_programs();
  size_t most = 1;
  for (const int rank : ranks) {
    const auto index = programs.program_of[static_cast<size_t>(rank)];
    most = std::max(most, num_tasks_of(run.plan().ranks[index]));
  }
  return spread(ranks, std::max<size_t>(max_tasks / most, 2));
}

ReportInput simulated_report(const SimulatedRun& run, std::span<const int> ranks, std::string title,
                             const SimulationDetails& details) {
  const RunPlan& plan = run.plan();
  const RankPlan& most = neediest(plan);
  ReportInput report{.title = std::move(title),
                     .config_toml = to_toml(run.spec().config),
                     .model = describe_model(plan.run.model),
                     .passes = pass_records(plan.ranks),
                     .memory = most.memory,
                     .timeline = run.timeline(ranks),
                     .memory_rank = most.programs[kTrainProgram].rank,
                     .simulation = simulation_json(run, details)};
  for (RankTimeline& rank : report.timeline.ranks) {
    rank.device = peaks_of(run.model().cluster().device);
  }
  report.memory_over_time = memory_over_time(run, report.timeline);
  report.unit_memory =
      unit_memory(run.plan_with_buffers(report.memory_rank).programs[kTrainProgram]);
  if (plan.run.mesh.num_ranks() > 1) {
    report.layout = describe_layout(run.spec());
    report.stages = stage_table(plan);
    report.jobs = pipeline_jobs(run.spec());
  }
  return report;
}

std::string write_simulated_report(const std::string& folder, const SimulatedRun& run,
                                   std::span<const int> ranks, const SimulationDetails& details) {
  prepare_report_folder(folder);
  const ReportInput input = simulated_report(run, ranks, folder_name(folder), details);
  const RunReport report = run_report(input);
  write_file_atomically(folder + "/config.toml", input.config_toml);
  write_file_atomically(folder + "/simulation.json", input.simulation);
  save_run_report(folder + "/" + kRunReportFile, report);
  const std::string page = (fs::path(folder) / "report.html").string();
  write_file_atomically(page, report_html({&report, 1}));
  return page;
}

namespace {

/// Places with a notable share of what is exposed, if there are several.
std::string most_exposed_places(const Timeline& timeline) {
  constexpr size_t kMostPlaces = 5;
  constexpr int64_t kSmallPart = 50;  // 2% of the exposed time is worth no line
  const std::vector<PlaceCommunication> places = communication_by_place(timeline);
  int64_t exposed_ns = 0;
  for (const PlaceCommunication& place : places) {
    exposed_ns += place.time.exposed_ns;
  }
  std::string text;
  for (size_t i = 0; i < std::min(kMostPlaces, places.size()); ++i) {
    const CommunicationTime& time = places[i].time;
    if (places.size() > 1 && time.exposed_ns > exposed_ns / kSmallPart) {
      text += fmt::format("place     {}: {} exposed of {} in {} calls, {} hidden\n", places[i].name,
                          format_duration(static_cast<double>(time.exposed_ns) * 1e-9),
                          format_duration(static_cast<double>(time.total_ns) * 1e-9),
                          time.num_tasks, hidden_share(time));
    }
  }
  return text;
}

}  // namespace

std::string describe_overlap(const SimulatedRun& run, std::span<const int> ranks) {
  const Timeline timeline = run.timeline(ranks);
  const std::vector<ExplainedCommunication> explained = explain_exposed(timeline);
  if (explained.empty()) {
    return "";
  }
  std::vector<std::string> names;
  for (const int rank : ranks) {
    names.push_back(fmt::format("{}", rank));
  }
  std::string text = fmt::format("hidden    or why not; sums over rank{} {}\n",
                                 names.size() == 1 ? "" : "s", join(names, ", "));
  for (const ExplainedCommunication& one : explained) {
    text += "overlap   " + describe_exposed(one) + "\n";
  }
  return text + most_exposed_places(timeline);
}

}  // namespace braid
