#pragma once

#include <string>

#include "report/report_html.h"

namespace braid {

/// The name of the file that `save_run_report` writes into a run folder.
inline constexpr const char* kRunReportFile = "report.json";

/// Writes a run for `load_run_report`, atomically. Throws DataError.
void save_run_report(const std::string& path, const RunReport& run);

/// Reads the output of `save_run_report`. `path` is a file or a run folder. For a folder, its
/// metrics.jsonl replaces the losses and speeds of its report.json, which may be older, and its
/// name becomes the title. Throws DataError for a path that does not exist, a folder that is not a
/// run, and a file that is truncated, damaged or of another format.
RunReport load_run_report(const std::string& path);

/// For a process that continued a run and traced no step: returns its report with the step that an
/// earlier process traced, that is its timeline, memory and communication, and with `remark`
/// (unless the earlier report already has one). `path` is the run's earlier report.json. Returns
/// the report unchanged if that file is missing, cannot be read or has no traced step.
RunReport with_earlier_trace(RunReport report, const std::string& path, const std::string& remark);

}  // namespace braid
