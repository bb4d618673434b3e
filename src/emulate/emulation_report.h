#pragma once

#include <string>

#include "emulate/rank_emulation.h"
#include "plan/simulated_run.h"
#include "report/report_html.h"

namespace braid {

/// What a page shows of a rank that ran alone: its traced step with its memory. Beside its
/// simulation, or beside the same rank with other settings, it is a page that compares. `run` is
/// the one that `emulation` was made of.
ReportInput emulated_step(const RankEmulation& emulation, const SimulatedRun& run,
                          std::string title);

/// Writes config.toml, report.json of the emulated rank, and report.html, which has the rank beside
/// its simulation, into a folder, which is made if it is not there. Returns the path of the page.
/// Throws ConfigError, naming `--report`, for the folder of a run that trained, and DataError if a
/// file cannot be written.
std::string write_emulation_report(const std::string& folder, const RankEmulation& emulation,
                                   const SimulatedRun& run);

}  // namespace braid
