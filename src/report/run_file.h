#pragma once

#include <string>

#include "report/report_html.h"

namespace braid {

/// Name, in a run folder, of the file that `save_run_report` writes.
inline constexpr const char* kRunReportFile = "report.json";

/// Writes a run for `load_run_report`, atomically. Throws DataError.
void save_run_report(const std::string& path, const RunReport& run);

/// Reads what `save_run_report` wrote. `path` is a run folder, whose metrics.jsonl then replaces
/// the losses and speeds of its report.json, which may be older, and whose name is the title; or a
/// file alone. Throws DataError for a path that does not exist, a folder that is no run,
/// and a file that is cut short, damaged or of another format.
RunReport load_run_report(const std::string& path);

/// The report of a process that continued a run and traced no step, with the step that an earlier
/// process traced: its timeline, memory and communication, and `remark` beside them (where the
/// earlier report has none of its own yet). `path` is the run's report.json as it was; unchanged if
/// that is not there, cannot be read or has no traced step.
RunReport with_earlier_trace(RunReport report, const std::string& path, const std::string& remark);

}  // namespace braid
