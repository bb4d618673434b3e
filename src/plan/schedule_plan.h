#pragma once

#include <vector>

#include "config/run_config.h"
#include "parallel/verify_ranks.h"
#include "plan/run_plan.h"
#include "sim/cost_model.h"

namespace braid {

/// The programs of all ranks of the run, by those that are planned: a rank that is not is taken to
/// have the program of the first planned one at its place in the tensor, context and pipeline
/// dimensions, or else at its pipeline stage. `plan` must outlive the result and stay where it is.
/// Throws InternalError if a stage has no planned rank.
RankPrograms rank_programs(const RunPlan& plan, size_t program = kTrainProgram);

/// The ranks to plan for `schedule_plan`, so that these get the order that they have in the whole
/// run: `ranks` and the first one of each place in the tensor, context and pipeline dimensions.
std::vector<int> ranks_to_schedule(const Mesh& mesh, std::vector<int> ranks);

/// Puts the tasks of the training programs of all planned ranks into a better order
/// (sim/list_schedule.h), gives them events again and plans their memory again. Tries a few
/// settings: memory as it is, a quarter more, all that the device has (`cost_model`'s, less what
/// `gpu_needs` says comes beside the arenas), each with several ways to fill waits (for long steps
/// all of them only where the device's memory is the limit, and the best of these elsewhere);
/// durations as in a simulation of the plan with what tasks cost each other. Of the orders that
/// `Simulator` finds faster, and that fit, takes the one that needs least memory within half a
/// percent of the fastest; none: the plan stays as it is. Every rank gets a PassRecord that says
/// which. Results are the same bits. Deterministic. `verify`: as PlanOptions; without it memory is
/// planned quickly, too. Throws InternalError as `Simulator`.
void schedule_plan(RunPlan& plan, const RunConfig& config, const CostModel& cost_model,
                   bool verify = true);

}  // namespace braid
