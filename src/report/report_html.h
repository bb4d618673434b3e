#pragma once

#include <span>
#include <string>
#include <vector>

#include "memory/memory_plan.h"
#include "memory/unit_pools.h"
#include "parallel/schedule_stats.h"
#include "passes/runner.h"
#include "report/memory_curve.h"
#include "report/records.h"
#include "trace/step_summary.h"
#include "trace/timeline.h"

namespace braid {

/// A table of texts: a title per column, then rows with one cell per column.
struct ReportTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

/// The content of a run's report. The page leaves out empty parts and says why.
struct ReportInput {
  std::string title;
  std::string config_toml;         ///< the resolved configuration
  std::string model;               ///< description of the model, one line
  std::vector<PassRecord> passes;  ///< of the training program
  MemoryPlan memory;               ///< of one rank, `memory_rank`
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;     ///< in the order of their steps
  std::vector<Fp8Record> fp8 = {};         ///< in the order of their steps
  std::vector<ExpertRecord> experts = {};  ///< in the order of their steps
  std::string layout;  ///< the layout of the ranks, a line each; empty: there is one rank
  ReportTable stages;  ///< one rank of each pipeline stage
  std::vector<std::vector<JobSlot>> jobs;          ///< by pipeline rank; empty: no pipeline
  double unigram_entropy = 0;                      ///< of the held-out tokens, nats; 0: unknown
  Timeline timeline;                               ///< one traced step of some ranks
  std::vector<TracedStep> traced_steps = {};       ///< all traced steps
  std::vector<MemoryCurve> memory_over_time = {};  ///< of the step in `timeline`
  int memory_rank = 0;                             ///< the rank of `memory`
  std::vector<UnitMemory> unit_memory = {};        ///< of its training program
  /// The output of `braid simulate --json` for a simulated step; empty: the step was measured.
  std::string simulation = {};
};

/// One run for a page: everything that the page shows of it, as a JSON object in one line.
///   {"format": 1, "data": {...}, "timeline": {...}, "schedule": "<svg ...>"}
/// `data` is report_data_json, `timeline` timeline_json, `schedule` schedule_svg or "".
struct RunReport {
  std::string title;
  std::string json;
  std::string note = {};  ///< for the user, if something of the run could not be read
};

/// Changes when an old reader would misread a new file, or a new reader an old file.
inline constexpr int kReportFormat = 1;

/// Texts may contain anything; bytes that are not UTF-8 become U+FFFD.
RunReport run_report(const ReportInput& input);

/// One run, or a comparison of two, as one HTML page that works offline and needs no other file.
/// One run: headline figures, loss and throughput over the steps, the parts of the step with the
/// reasons for exposed communication, what FP8 lost, the timeline of a step (zoom, pan, hover),
/// memory over the step against the plan, operations, the layout with the jobs of the pipeline,
/// passes, configuration. Two runs: the same figures side by side with their differences, losses in
/// one chart, both timelines on one time scale, and the settings that differ. A simulated run says
/// so in its first line and has no losses. Any two runs can be compared; to compare a measured run
/// with a simulated step, pass the run of load_run_report and `run_report(simulated_report(...))`
/// of plan/simulated_report.h. Opened as report.html#selfcheck, the page tests itself and lists in
/// the element "selfcheck" what does not work.
std::string report_html(std::span<const RunReport> runs);
std::string report_html(const ReportInput& input);

}  // namespace braid
