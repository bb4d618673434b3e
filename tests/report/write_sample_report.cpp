// write_sample_report PATH TASKS STEPS [KIND]: a made-up report of that size, for the test in a
// browser. KIND: "compare": two runs of different settings; "predicted": the second a simulated
// step; "both": two simulated steps; "simulated": one simulated step. TASKS 0: no timeline, which
// simulated steps always have.

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "report/sample_report.h"

namespace {

braid::ReportInput make_report(int64_t num_tasks, int64_t num_steps) {
  braid::ReportInput input = braid::sample_report(num_tasks, num_steps);
  input.title += " </script><b>&amp;";
  input.config_toml += "# </script><script>throw 1</script>\n";
  if (num_tasks == 0) {
    input.timeline = {};
    input.memory_over_time.clear();
    input.layout.clear();
    input.stages = {};
    input.jobs.clear();
  }
  if (num_steps == 0) {
    input.evaluations.clear();
  }
  return input;
}

/// Another run: slower, with one setting changed.
braid::ReportInput make_other(braid::ReportInput input) {
  input.title = "other";
  input.config_toml += "[loss]\nonly_here = true\n";
  for (braid::RankTimeline& rank : input.timeline.ranks) {
    for (braid::TimelineTask& task : rank.tasks) {
      task.start_ns += task.start_ns / 4;
      task.end_ns += task.end_ns / 4;
    }
    rank.kernels.clear();
  }
  for (braid::StepRecord& step : input.steps) {
    step.step_ms *= 1.25;
    step.tokens_per_s /= 1.25;
  }
  return input;
}

std::vector<braid::RunReport> make_runs(braid::ReportInput input, std::string_view kind) {
  std::vector<braid::ReportInput> inputs;
  if (kind == "compare" || kind == "predicted" || kind == "both") {
    inputs.push_back(make_other(input));
  }
  inputs.insert(inputs.begin(), std::move(input));
  if (kind == "simulated" || kind == "both") {
    braid::simulate_sample(inputs.front());
  }
  if (kind == "predicted" || kind == "both") {
    braid::simulate_sample(inputs.back());
  }
  std::vector<braid::RunReport> runs;
  for (const braid::ReportInput& one : inputs) {
    runs.push_back(braid::run_report(one));
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(
        stderr, "usage: write_sample_report PATH TASKS STEPS [compare|predicted|both|simulated]\n");
    return 2;
  }
  const std::vector<braid::RunReport> runs =
      make_runs(make_report(std::atoll(argv[2]), std::atoll(argv[3])), argc == 5 ? argv[4] : "");
  braid::write_file_atomically(argv[1], braid::report_html(runs));
  return 0;
}
