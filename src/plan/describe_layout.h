#pragma once

#include <string>
#include <vector>

#include "parallel/schedule_stats.h"
#include "plan/run_plan.h"
#include "report/report_html.h"

namespace braid {

/// Describes the layout of a run, one line per topic: ranks by dimension, stages and schedule,
/// shards.
///   layout    16 ranks = tensor 2 (sequence parallel) x context 1 x data 2 x pipeline 4
///   pipeline  Et|t|t|tL, 1f1b of 8 microbatches, bubble 27.3%
///   shards    optimizer state over 2 ranks
std::string describe_layout(const RunSpec& run);

/// The jobs of all pipeline ranks as a table for a terminal of `max_width` columns (see
/// schedule_table.h), below one title line. Empty without a pipeline.
std::string describe_schedule(const RunSpec& run, int max_width);

/// The jobs of all pipeline ranks, assuming that forward, dgrad and wgrad of a virtual stage take
/// one unit of time each. Empty without a pipeline.
std::vector<std::vector<JobSlot>> pipeline_jobs(const RunSpec& run);

/// Parameters and memory by class of the first rank of each pipeline stage. Requires: these ranks
/// are planned.
ReportTable stage_table(const RunPlan& plan);

/// A table with one line per planned rank: stage, parameters, memory by class. If only some ranks
/// were planned, a first line says how many ranks each of them represents.
std::string describe_ranks(const RunPlan& plan);

}  // namespace braid
