#pragma once

#include <string>

#include "emulate/rank_emulation.h"
#include "plan/simulated_run.h"
#include "report/report_html.h"

namespace braid {

/// The report input of an emulated rank: its traced step with its memory. It can be compared with
/// its simulation, or with the same rank with other settings. `run` is the run from which
/// `emulation` was made.
ReportInput emulated_step(const RankEmulation& emulation, const SimulatedRun& run,
                          std::string title);

/// Writes config.toml, report.json of the emulated rank, and report.html, which compares the rank
/// with its simulation, into a folder, which is created if missing. Returns the path of the page.
/// Throws ConfigError, naming `--report`, for the folder of a run that trained, and DataError if a
/// file cannot be written.
std::string write_emulation_report(const std::string& folder, const RankEmulation& emulation,
                                   const SimulatedRun& run);

}  // namespace braid
