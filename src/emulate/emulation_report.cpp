#include "emulate/emulation_report.h"

#include <array>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "plan/rank_programs.h"
#include "plan/simulated_report.h"
#include "plan/unit_memory.h"
#include "report/run_file.h"

namespace braid {

ReportInput emulated_step(const RankEmulation& emulation, const SimulatedRun& run,
                          std::string title) {
  const RankTimeline& rank = emulation.timeline.ranks.front();
  ReportInput report = simulated_report(run, std::array{rank.rank}, std::move(title));
  report.simulation.clear();
  report.timeline = emulation.timeline;
  report.memory = plan_of_rank(run.plan(), rank.rank).memory;
  report.memory_rank = rank.rank;
  report.memory_over_time = memory_over_time(run, report.timeline);
  report.unit_memory = unit_memory(run.plan_with_buffers(rank.rank).programs[kTrainProgram]);
  return report;
}

std::string write_emulation_report(const std::string& folder, const RankEmulation& emulation,
                                   const SimulatedRun& run) {
  prepare_report_folder(folder);
  const int rank = emulation.timeline.ranks.front().rank;
  const ReportInput measured =
      emulated_step(emulation, run, fmt::format("rank {} of {}, emulated", rank, folder));
  const RunReport report = run_report(measured);
  write_file_atomically(folder + "/config.toml", measured.config_toml);
  save_run_report(folder + "/" + kRunReportFile, report);
  ReportInput simulated = simulated_report(run, std::array{rank}, "as simulated");
  simulated.simulation.clear();  // it covers all ranks, this page only one
  const std::string page = (std::filesystem::path(folder) / "report.html").string();
  write_file_atomically(page, report_html(std::array{report, run_report(simulated)}));
  return page;
}

}  // namespace braid
