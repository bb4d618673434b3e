#pragma once

#include <string>
#include <vector>

#include "base/env.h"
#include "config/run_config.h"
#include "plan/overlap_setup.h"
#include "plan/rank_programs.h"
#include "plan/run_plan.h"
#include "sim/cost_model.h"

namespace braid {

/// Names of the passes that are turned off: by section [overlap] (`setup`), by the user in
/// overlap.disable_passes (`by_key`), or by a debug variable.
std::vector<std::string> disabled_passes(const OverlapSetup& setup,
                                         const std::vector<std::string>& by_key,
                                         const DebugOptions& debug);

/// Whether `overlap` asks for a pass over all ranks: list_schedule, comm_engine = "hidden", or a
/// pass that the calling program has added.
bool is_scheduled(const OverlapConfig& overlap);

/// Runs the passes over all ranks on the training programs of all planned ranks, and gives each
/// rank their records. What they choose depends on the leading ranks only (`leading_ranks`), which
/// should be planned. `cost_model`, `verify`: as in PlanOptions; without `verify`, memory is also
/// planned quickly. Throws ConfigError if a pass needs costs and there are none, InternalError as
/// `run_all_passes`.
void schedule_plan(RunPlan& plan, const RunSpec& run, const CostModel* cost_model,
                   bool verify = true);

/// Adds to each rank the records of passes over all ranks that have not run.
void note_unscheduled(RunPlan& plan, const OverlapConfig& overlap);

}  // namespace braid
