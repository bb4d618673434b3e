#pragma once

#include <string>

#include "report/report_html.h"

namespace braid {

/// All of a report but the timeline, as JSON for a script inside an HTML page ("<" is escaped).
/// Series are columns; a number that is not finite is null; times are in the unit of their name.
///
///   {"title": "...", "model": "...", "config": "...", "unigram_entropy": 6.9,
///    "steps": {"step": [1], "loss": [9.2], ...}, "evaluations": {"step": [0], "loss": [9.3]},
///    "passes": [{"name", "ms", "skipped", "changed", "num_changes", "summary"}],
///    "memory": {"persistent_bytes", "step_bytes", "max_live_bytes",
///               "classes": [{"name", "persistent_bytes", "step_bytes"}]},
///    "ranks": [{"rank", "step_ns", "compute_ns", "copy_ns", "bubble_ns", "communication": {...},
///               "by_group": [{"name", "num_tasks", "bytes", "total_ns", "exposed_ns"}]}]}
///
/// `memory.classes` of the step are those of the program with the largest step arena, at its peak;
/// `by_group` has the kinds that communicate.
std::string report_data_json(const ReportInput& input);

/// The text with the characters escaped that mean something in HTML.
std::string escape_html(const std::string& text);

}  // namespace braid
