// write_sample_report PATH TASKS STEPS [compare]: a made-up report of that size, for the test in a
// browser; with "compare" beside a second, simulated run of other settings. TASKS 0: no timeline.

#include <cstdio>
#include <cstdlib>
#include <string_view>
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

/// Another run: simulated, slower, with one setting changed.
braid::ReportInput make_other(braid::ReportInput input) {
  input.title = "other";
  input.config_toml += "[loss]\nonly_here = true\n";
  input.timeline.source = "sim";
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "usage: write_sample_report PATH TASKS STEPS [compare]\n");
    return 2;
  }
  const braid::ReportInput input = make_report(std::atoll(argv[2]), std::atoll(argv[3]));
  std::vector<braid::RunReport> runs = {braid::run_report(input)};
  if (argc == 5 && std::string_view(argv[4]) == "compare") {
    runs.push_back(braid::run_report(make_other(input)));
  }
  braid::write_file_atomically(argv[1], braid::report_html(runs));
  return 0;
}
