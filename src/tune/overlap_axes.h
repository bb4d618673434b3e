#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "passes/gradients/prefetch_parameters.h"
#include "passes/overlap_axis.h"
#include "sim/cost_model.h"

namespace braid {

/// Whether devices of the model have copy engines that reach others: GPUs.
bool has_copy_engines(const CostModel& model);

/// What mode = "manual" can choose for `config`, an otherwise validated and resolved one: only what
/// its layout has ranks for, and, unless overlap.may_change_rounding, only what changes no bit.
/// comm_engine is one only if it is "auto": another one is the user's.
/// Without what a simulation of the whole step decides, overlap.list_schedule and
/// overlap.comm_engine = "hidden" (`schedule_whole_step`). Some choices contradict each other:
/// `validate` says so.
std::vector<OverlapAxis> overlap_axes(const RunConfig& config, const AxisLimits& limits);

/// Without and with overlap.list_schedule.
OverlapAxis list_schedule_axis();

/// Turns on what passes over all ranks can decide: list_schedule, and comm_engine = "hidden" where
/// there are copy engines and sums may be rounded in another way.
void schedule_whole_step(const RunConfig& config, const AxisLimits& limits, OverlapConfig& overlap);

/// `without_overlap`, and passes that are tried by name off.
OverlapConfig manual_nothing(const OverlapConfig& overlap);

/// mode = "manual" with the keys that stand for what mode = "auto" does without a cost model: the
/// programs are the same.
OverlapConfig manual_defaults(const RunConfig& config);

/// The same, with every product in the pieces that hide its communication (`tp_comm_overlap`).
/// Requires tensor ranks and sequence parallelism.
OverlapConfig manual_rings(const RunConfig& config);

/// "overlap_p2p_comm = true, comm_engine = "hidden" instead of "sm", fc1_fprop = ring instead of
/// none": the keys whose values in `to` are not those in `from`, without mode, and products whose
/// method is another one where both have `tp_comm_overlap`; empty if there are none.
std::string describe_overlap_change(const OverlapConfig& from, const OverlapConfig& to);

}  // namespace braid
