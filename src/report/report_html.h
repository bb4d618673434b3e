#pragma once

#include <span>
#include <string>
#include <vector>

#include "memory/memory_plan.h"
#include "parallel/schedule_stats.h"
#include "passes/runner.h"
#include "report/memory_curve.h"
#include "report/records.h"
#include "trace/step_summary.h"
#include "trace/timeline.h"

namespace braid {

/// A table of texts: one of `columns` per column, then rows of as many cells.
struct ReportTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

/// What the report of a run shows. Parts that are empty are left out of the page, which says why.
struct ReportInput {
  std::string title;
  std::string config_toml;         ///< the resolved configuration
  std::string model;               ///< description of the model, one line
  std::vector<PassRecord> passes;  ///< of the training program
  MemoryPlan memory;               ///< of one rank
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;  ///< in the order of their steps
  std::string layout;  ///< how the run lies on its ranks, a line each; empty: there is one rank
  ReportTable stages;  ///< a rank of each pipeline stage
  std::vector<std::vector<JobSlot>> jobs;          ///< by pipeline rank; empty: no pipeline
  double unigram_entropy = 0;                      ///< of the held-out tokens, nats; 0: not known
  Timeline timeline;                               ///< one traced step of some ranks
  std::vector<TracedStep> traced_steps = {};       ///< all that were traced
  std::vector<MemoryCurve> memory_over_time = {};  ///< of that step
  int memory_rank = 0;                             ///< whose plan `memory` is
  /// What `braid simulate --json` prints of the step, where it was simulated; empty: measured.
  std::string simulation = {};
};

/// One run for a page: all that the page shows of it, as a JSON object in one line.
///   {"format": 1, "data": {...}, "timeline": {...}, "schedule": "<svg ...>"}
/// `data` is report_data_json, `timeline` timeline_json, `schedule` schedule_svg or "".
struct RunReport {
  std::string title;
  std::string json;
};

/// What changes when a reader of an older file would misread a newer one, or the other way round.
inline constexpr int kReportFormat = 1;

/// Texts may hold anything; bytes that are not UTF-8 become U+FFFD.
RunReport run_report(const ReportInput& input);

/// One run, or two that are compared, as one HTML page that needs no network and no other file.
/// One: headline figures, loss and throughput over the steps, where the step goes with why
/// communication was exposed, the timeline of a step (zoom, pan, hover), memory over the step
/// against the plan, operations, the layout with the jobs of the pipeline, passes, configuration.
/// Two: the same figures side by side with their differences, losses in one chart, both timelines
/// on one scale of time, and the settings that differ. A simulated run says so in its first line
/// and has no losses. Any two can be compared: to put a simulated step beside a measured run, give
/// the run of load_run_report and `run_report(simulated_report(...))` of plan/simulated_report.h.
/// Opened as report.html#selfcheck, the page operates itself and says in the element "selfcheck"
/// what does not work.
std::string report_html(std::span<const RunReport> runs);
std::string report_html(const ReportInput& input);

}  // namespace braid
