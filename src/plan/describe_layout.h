#pragma once

#include <string>
#include <vector>

#include "parallel/schedule_stats.h"
#include "plan/run_plan.h"
#include "report/report_html.h"

namespace braid {

/// The layout of a run for people, a line each: ranks by dimension, stages and schedule, shards.
///   layout    16 ranks = tensor 2 (sequence parallel) x context 1 x data 2 x pipeline 4
///   pipeline  Et|t|t|tL, 1f1b of 8 microbatches, bubble 27.3%
///   shards    optimizer state over 2 ranks
std::string describe_layout(const RunSpec& run);

/// The jobs of all pipeline ranks as a table for a terminal of `max_width` columns (see
/// schedule_table.h), a line first that says what it is; empty without a pipeline.
std::string describe_schedule(const RunSpec& run, int max_width);

/// The jobs of all pipeline ranks, if forward, dgrad and wgrad of a virtual stage took one unit of
/// time each; empty without a pipeline.
std::vector<std::vector<JobSlot>> pipeline_jobs(const RunSpec& run);

/// Parameters and memory by class of the first rank of each pipeline stage, which must be planned.
ReportTable stage_table(const RunPlan& plan);

/// A table with a line per planned rank: stage, parameters, memory by class. Where only some ranks
/// were planned, a line first that says for how many each stands.
std::string describe_ranks(const RunPlan& plan);

}  // namespace braid
