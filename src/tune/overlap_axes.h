#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "passes/gradients/prefetch_parameters.h"
#include "passes/overlap_axis.h"
#include "sim/cost_model.h"

namespace braid {

/// Whether devices of the model have copy engines that reach other devices: true for GPUs.
bool has_copy_engines(const CostModel& model);

/// The choices of mode = "manual" for `config`, which must be otherwise validated and resolved:
/// only those for which the layout has ranks, and, unless overlap.may_change_rounding, only those
/// that change no bit. comm_engine is an axis only if it is "auto"; another value is the user's
/// choice. overlap.list_schedule and overlap.comm_engine = "hidden" are not included, because a
/// simulation of the whole step decides them (`schedule_whole_step`). Some choices contradict each
/// other; `validate` reports these.
std::vector<OverlapAxis> overlap_axes(const RunConfig& config, const AxisLimits& limits);

/// The axis of overlap.list_schedule: off and on.
OverlapAxis list_schedule_axis();

/// Turns on what passes over all ranks can decide: list_schedule, and comm_engine = "hidden" if
/// there are copy engines and rounding of sums may change.
void schedule_whole_step(const RunConfig& config, const AxisLimits& limits, OverlapConfig& overlap);

/// The section with which a search of a run starts: the keys that mode = "auto" reads, because
/// other modes mean other things by them. Ranks that share a GPU cannot choose the communication
/// engine.
OverlapConfig searched_overlap(const RunConfig& config);

/// `without_overlap`, with the passes that are tried by name turned off too.
OverlapConfig manual_nothing(const OverlapConfig& overlap);

/// mode = "manual" with the keys that produce the same programs as mode = "auto" without a cost
/// model.
OverlapConfig manual_defaults(const RunConfig& config);

/// The same, with every product split into pieces that hide its communication (`tp_comm_overlap`).
/// Requires tensor ranks and sequence parallelism.
OverlapConfig manual_rings(const RunConfig& config);

/// "overlap_p2p_comm = true, comm_engine = "hidden" instead of "sm", fc1_fprop = ring instead of
/// none": the keys that differ between `from` and `to`, without mode, and the products whose method
/// differs if both have `tp_comm_overlap`. Empty if nothing differs.
std::string describe_overlap_change(const OverlapConfig& from, const OverlapConfig& to);

}  // namespace braid
