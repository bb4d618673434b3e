#pragma once

#include "parallel/schedule.h"

namespace braid {

/// Job orders of the schedules; durations play no role. `options` must be valid.
Schedule gpipe_order(const ScheduleOptions& options);
Schedule one_forward_one_backward_order(const ScheduleOptions& options, int rank);
Schedule interleaved_order(const ScheduleOptions& options, int rank);
Schedule dualpipe_v_order(const ScheduleOptions& options, int rank);

/// Forwards and dgrads of zb-v: the phases of the V schedule for jobs of one time unit each, made
/// for at least 2 P - 1 microbatches and reduced to M.
Schedule zb_v_order(const ScheduleOptions& options, int rank);

/// Inserts a wgrad for each dgrad into the orders of all ranks of a pipeline. Assumes that every
/// job takes one unit of time. A rank runs a wgrad if its next job is not ready, or if that job is
/// a forward that would make the rank hold activations of more than `max_activations` (virtual
/// stage, microbatch) pairs. A pair is held from its forward to its wgrad. Requires that no order
/// alone exceeds that limit.
std::vector<Schedule> fill_with_wgrads(const ScheduleOptions& options,
                                       const std::vector<Schedule>& orders,
                                       int64_t max_activations);

}  // namespace braid
