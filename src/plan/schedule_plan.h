#pragma once

#include "config/run_config.h"
#include "plan/rank_programs.h"
#include "plan/run_plan.h"
#include "sim/cost_model.h"

namespace braid {

/// Whether `overlap` asks for what `schedule_plan` does: list_schedule, or comm_engine = "hidden".
bool is_scheduled(const OverlapConfig& overlap);

/// With overlap.list_schedule, puts the tasks of the training programs of all planned ranks into a
/// better order (sim/list_schedule.h); with overlap.comm_engine = "hidden", chooses what moves the
/// bytes of each collective (plan/choose_engines.h), behind the order. Gives programs events again
/// and plans their memory again. Of orders tries a few settings: memory as it is, a quarter more,
/// all that the device has (`cost_model`'s, less what `rank_bytes` says comes beside the arenas),
/// each with several ways to fill waits (for long steps all of them only where the device's memory
/// is the limit, and the best of these elsewhere), from the program's order and, without a
/// pipeline, from microbatches in pairs (plan/microbatch_pairs.h); durations as in a simulation of
/// the plan with what tasks cost each other. Of the orders that `Simulator` finds faster, and that
/// fit, takes the one that needs least memory within half a percent of the fastest; none: the plan
/// stays as it is. Every rank gets a PassRecord that says which. Results are the same bits, but for
/// sums that copy engines are chosen for, which then are those of the CPU
/// (passes/streams/comm_engine.h). Deterministic. `verify`: as PlanOptions; without it memory is
/// planned quickly, too. Throws InternalError as `Simulator`.
void schedule_plan(RunPlan& plan, const RunSpec& run, const CostModel& cost_model,
                   bool verify = true);

/// The same by one planned rank of each `structure_hash`: the others have programs equal to its
/// own, and the same order. So it does not matter which of them are planned, where the rest have
/// RunPlan::stand_ins.
void schedule_kinds(RunPlan& plan, const RunSpec& run, const CostModel& cost_model,
                    bool verify = true);

}  // namespace braid
