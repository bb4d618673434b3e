#pragma once

#include "parallel/schedule.h"

namespace braid {

/// Orders of the schedules without regard to time. `options` are valid.
Schedule gpipe_order(const ScheduleOptions& options);
Schedule one_forward_one_backward_order(const ScheduleOptions& options, int rank);
Schedule interleaved_order(const ScheduleOptions& options, int rank);
Schedule dualpipe_v_order(const ScheduleOptions& options, int rank);

/// Forwards and dgrads of zb-v: the phases of the V schedule for unit times, made for at least
/// 2 P - 1 microbatches and cut down to M.
Schedule zb_v_order(const ScheduleOptions& options, int rank);

/// Puts a wgrad for each dgrad into the orders of all ranks of a pipeline. Every job takes one unit
/// of time; a rank runs a wgrad where its next job is not ready, or is a forward that would make it
/// hold the activations of more than `max_activations` (virtual stage, microbatch) pairs. A pair is
/// held from its forward to its wgrad. Each order alone may hold no more.
std::vector<Schedule> fill_with_wgrads(const ScheduleOptions& options,
                                       const std::vector<Schedule>& orders,
                                       int64_t max_activations);

}  // namespace braid
