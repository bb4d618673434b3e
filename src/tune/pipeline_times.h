#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// Durations of the jobs of a global stage, in nanoseconds.
struct StageTimes {
  int64_t forward_ns = 0;
  int64_t dgrad_ns = 0;
  int64_t wgrad_ns = 0;
  int64_t delayed_ns = 0;  ///< of a whole backward: weight gradients behind its message
};

/// When the last job of each rank ends if each rank does its jobs in order, as soon as it can, and
/// a message arrives `message_ns` after it was sent. `stages` in the order of the model. What
/// `time_schedules` does, for stages of different sizes and without keeping the slots; linear in
/// jobs. Throws ConfigError as `make_schedules`, InternalError if the ranks wait for each other.
std::vector<int64_t> end_times(const ScheduleOptions& options,
                               const std::vector<Schedule>& schedules,
                               std::span<const StageTimes> stages, int64_t message_ns);

/// Activations that a rank keeps at most, in (virtual stage, microbatch) pairs: the bounds of
/// docs/pipeline.md, and no more than there are.
int64_t most_activations(const ScheduleOptions& options, int rank);

}  // namespace braid
