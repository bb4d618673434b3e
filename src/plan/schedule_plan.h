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

/// Names of the passes that section [overlap] turns off, and of those that the user disables:
/// `by_key`, overlap.disable_passes, and by a debug variable.
std::vector<std::string> disabled_passes(const OverlapSetup& setup,
                                         const std::vector<std::string>& by_key,
                                         const DebugOptions& debug);

/// Whether `overlap` asks for a pass over all ranks: list_schedule, comm_engine = "hidden", or one
/// that a program has added.
bool is_scheduled(const OverlapConfig& overlap);

/// Runs the passes over all ranks on the training programs of all planned ranks. Each rank gets
/// their records. `cost_model`: as PlanOptions. `verify`: as PlanOptions; without it memory is
/// planned quickly, too. Throws ConfigError if a pass needs costs and there are none, InternalError
/// as `run_all_passes`.
void schedule_plan(RunPlan& plan, const RunSpec& run, const CostModel* cost_model,
                   bool verify = true);

/// The same by one planned rank of each `structure_hash`: the others have programs equal to its
/// own, and the same order. So it does not matter which of them are planned, where the rest have
/// RunPlan::alike.
void schedule_kinds(RunPlan& plan, const RunSpec& run, const CostModel* cost_model,
                    bool verify = true);

/// Gives each rank the records of passes over all ranks that have not run.
void note_unscheduled(RunPlan& plan, const OverlapConfig& overlap);

}  // namespace braid
