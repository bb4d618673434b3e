#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "plan/describe_simulation.h"
#include "plan/simulated_run.h"
#include "report/report_html.h"

namespace braid {

/// Tasks that the page of a simulated step shows by default: about 10 MB of page.
inline constexpr size_t kMaxReportTasks = 400'000;

/// Ranks to show on the page of a simulated step, ascending: the first of each pipeline stage. If
/// these have more than `max_tasks` tasks, only as many stages as fit, evenly spaced; the first and
/// the last stage are always included.
std::vector<int> ranks_to_show(const SimulatedRun& run, size_t max_tasks = kMaxReportTasks);

/// Memory in use over time on the ranks of a timeline, as points for a chart. The timeline must be
/// of this run, simulated or measured.
std::vector<MemoryCurve> memory_over_time(const SimulatedRun& run, const Timeline& timeline);

/// Report input for a simulated step: its figures (means over all ranks of the run), the timelines
/// of `ranks` with their memory, why their communication was exposed, the jobs of the pipeline, and
/// the memory plan of the rank that needs most. Together with a measured run it makes a page that
/// compares prediction and measurement:
///   const RunReport predicted = run_report(simulated_report(run, ranks, "predicted"));
///   report_html(std::vector{load_run_report(folder), predicted});
/// Throws ConfigError for a rank that the run does not have.
ReportInput simulated_report(const SimulatedRun& run, std::span<const int> ranks, std::string title,
                             const SimulationDetails& details = {});

/// Creates the folder for the report of a simulated step. Throws ConfigError, naming `--report`,
/// for the folder of a training run, whose report would be lost, and DataError.
void prepare_report_folder(const std::string& folder);

/// Writes the files that `braid report` needs of a simulated step, and its page, into a folder,
/// which is created if missing: config.toml, simulation.json (simulation_json), report.json,
/// report.html. Returns the path of the page. Throws ConfigError, naming `--report`, for the folder
/// of a training run (whose report would be lost), and for a rank that the run does not have;
/// DataError if a file cannot be written.
std::string write_simulated_report(const std::string& folder, const SimulatedRun& run,
                                   std::span<const int> ranks,
                                   const SimulationDetails& details = {});

/// Explains why communication of these ranks is exposed: a line that names the ranks, then one line
/// for each kind, and one for each of the most exposed places:
///   overlap   tensor: 41.2 ms, 70.1% hidden; 8.10 ms exposed on the compute stream, ...
///   place     all_gather mlp.fc1.input.row: 4.61 ms exposed of 10.5 ms in 64 calls, 56.1% hidden
/// "" if none of the ranks communicates. Throws ConfigError for a rank that the run does not have.
std::string describe_overlap(const SimulatedRun& run, std::span<const int> ranks);

}  // namespace braid
