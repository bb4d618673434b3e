#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "sim/cost_model.h"

namespace braid {

/// Sets keys of [overlap].
using OverlapChange = std::function<void(OverlapConfig&)>;

/// Keys of [overlap] that are chosen together. The first choice does without what they are about.
struct OverlapAxis {
  std::string name;  ///< "p2p", "qkv": for people who read a search
  std::vector<OverlapChange> choices;
};

/// What a model's layers and its machine mean for the axes.
struct AxisLimits {
  int64_t layers_of_job = 1;  ///< layers of a backward job: more cannot wait
  int64_t num_microbatches = 1;
  bool copy_engines = false;  ///< that could move bytes between ranks
};

/// Whether devices of the model have copy engines that reach others: GPUs.
bool has_copy_engines(const CostModel& model);

/// What mode = "manual" can choose for `config`, an otherwise validated and resolved one: only what
/// its layout has ranks for, and, unless overlap.may_change_rounding, only what changes no bit.
/// comm_engine is one only if it is "auto": another one is the user's.
/// Without what a simulation of the whole step decides, overlap.list_schedule and
/// overlap.comm_engine = "hidden" (`schedule_whole_step`). Some choices contradict each other:
/// `validate` says so.
std::vector<OverlapAxis> overlap_axes(const RunConfig& config, const AxisLimits& limits);

/// Whether a search may keep units of sharded weights whole: not where recompute in some of the
/// layers says that memory is short, since another layer costs more than a gather.
bool may_keep_units_whole(const RunConfig& config);

/// How many units are kept whole (overlap.param_gather_whole_units); one of `overlap_axes` where
/// `may_keep_units_whole`.
OverlapAxis whole_units_axis();

/// Without and with overlap.list_schedule.
OverlapAxis list_schedule_axis();

/// Turns on what `schedule_plan` can decide: list_schedule, and comm_engine = "hidden" where there
/// are copy engines and sums may be rounded in another way.
void schedule_whole_step(const RunConfig& config, const AxisLimits& limits, OverlapConfig& overlap);

/// mode = "manual" with nothing on, and the comm_engine that there is; keys that say what may be
/// chosen are gone.
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
