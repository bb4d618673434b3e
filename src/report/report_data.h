#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "report/metrics_file.h"
#include "report/report_html.h"

namespace braid {

/// All of a report except the timeline, as JSON for a script inside an HTML page ("<" is escaped).
/// Series are columns; a number that is not finite is null; names of times contain their unit.
///
///   {"title": "...", "model": "...", "config": "...", "unigram_entropy": 6.9,
///    "steps": {"step": [1], "loss": [9.2], "mtp_losses": [[9.3]] (by depth, if there are any),
///              "pairs": {"chosen": [0.1], "rejected": [-0.1], "accuracy": [0.75]} (rewards, with
///              preference.loss),
///              ...}, "evaluations": {"step": [0], "loss": [9.3]},
///    "fp8_watch": {"columns": ["place"], "rows": [["attention.qkv"]]} (fp8_table.h; only if there
///                 are records),
///    "experts": {...} (expert_loads.h; only if there are records),
///    "passes": [{"name", "ms", "skipped", "changed", "num_changes", "summary"}],
///    "trace_remark": "..." (only if run_file.h took the traced step from an earlier process),
///    "simulation": null or the output of simulation_json,
///    "memory": {"rank", "persistent_bytes", "step_bytes", "max_live_bytes",
///               "classes": [{"name", "persistent_bytes", "step_bytes"}],
///               "units": [{"what", "planned_bytes", "live_bytes", "max_pool_bytes",
///                          "kind_pools_bytes", "own_bytes"}] (unit_pools.h)},
///    "memory_over_time": [{"rank", "high_bytes", "persistent_bytes", "step_bytes",
///                          "time_ns": [0], "classes": [{"name", "bytes": [0]}]}],
///    "communication": [{"name", "num_tasks", "bytes", "total_ns", "exposed_ns", "sentence",
///                       "reasons": [{"reason", "ns"}]}],
///    "layout": {"text": "...", "columns": ["rank"], "rows": [["0"]]},
///    "ranks": [{"rank", "step_ns", "compute_ns", "copy_ns", "bubble_ns",
///               "bubble": {"warmup_ns", "steady_ns", "cooldown_ns"}, "communication": {...},
///               "by_group": [{"name", "num_tasks", "bytes", "total_ns", "exposed_ns"}],
///               "device": {"name", "flops_per_s", "bytes_per_s"},
///               "ops": [{"op", "kind", "num_tasks", "busy_ns", "flops", "bytes", "least_ns"}],
///               "no_task_ns", "idle": {"total_ns", "num_gaps",
///                                      "longest": [{"start_ns", "duration_ns", "after",
///                                      "before"}]}}],
///    "traced_steps": (traced_steps.h), "prediction": (prediction.h, if requested)}
///
/// `after` and `before` are names of tasks, or null at the start and the end of the step. The step
/// bytes of `memory.classes` are those of the program with the largest step arena, at its peak.
/// `by_group`, and `communication`, which is its sum over the ranks, contain the kinds that
/// communicate. Columns of `memory_over_time` are in a form of packed_column.h.
std::string report_data_json(const ReportInput& input);

/// Replaces "steps", "evaluations", "fp8_watch" and "experts" of a report's data.
void set_metrics(nlohmann::ordered_json& data, const Metrics& metrics);

/// JSON text that is safe inside <script>. Bytes that are not UTF-8 become U+FFFD.
std::string script_json(const nlohmann::ordered_json& json);

/// The text with HTML's special characters escaped.
std::string escape_html(const std::string& text);

}  // namespace braid
