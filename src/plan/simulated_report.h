#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "plan/simulated_run.h"
#include "report/report_html.h"

namespace braid {

/// Tasks that the page of a simulated step shows if nobody chooses its ranks: some 10 MB of page.
inline constexpr size_t kMaxReportTasks = 400'000;

/// Ranks for the page of a simulated step: the first of each pipeline stage. Where these have more
/// than `max_tasks` tasks, those of as many stages as fit, at even distances from the first to the
/// last, and these two in any case. Ascending.
std::vector<int> ranks_to_show(const SimulatedRun& run, size_t max_tasks = kMaxReportTasks);

/// Memory in use on the ranks of a timeline, which is of this run, simulated or measured: points
/// for a chart.
std::vector<MemoryCurve> memory_over_time(const SimulatedRun& run, const Timeline& timeline);

/// All that a page shows of a simulated step: its figures (means over all ranks of the run), the
/// timelines of `ranks` with their memory, why their communication was exposed, the jobs of the
/// pipeline, and the memory plan of the rank that needs most. Beside a measured run it is a page
/// that compares prediction and measurement:
///   const RunReport predicted = run_report(simulated_report(run, ranks, "predicted"));
///   report_html(std::vector{load_run_report(folder), predicted});
/// Throws ConfigError for a rank that the run does not have.
ReportInput simulated_report(const SimulatedRun& run, std::span<const int> ranks,
                             std::string title);

/// Makes a folder for the report of a step that nobody trained. Throws ConfigError, naming
/// `--report`, for the folder of a run that trained, whose report would be lost, and DataError.
void prepare_report_folder(const std::string& folder);

/// Writes what `braid report` needs of a simulated step, and its page, into a folder, which is made
/// if it is not there: config.toml, simulation.json (simulation_json), report.json, report.html.
/// Returns the path of the page. Throws ConfigError, naming `--report`, for the folder of a run
/// that trained (whose report would be lost), and for a rank that the run does not have; DataError
/// if a file cannot be written.
std::string write_simulated_report(const std::string& folder, const SimulatedRun& run,
                                   std::span<const int> ranks);

/// Why communication of these ranks is exposed, one line for each kind:
///   overlap   tensor: 41.2 ms, 70.1% hidden; 8.10 ms exposed on the compute stream, ...
/// after one that names the ranks; "" if none of them communicates. Throws ConfigError for a rank
/// that the run does not have.
std::string describe_overlap(const SimulatedRun& run, std::span<const int> ranks);

}  // namespace braid
