#pragma once

#include <cstdint>
#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// Duration of a job on one virtual stage, in any unit of time. A whole backward takes dgrad +
/// wgrad.
struct JobCosts {
  int64_t forward = 1;
  int64_t dgrad = 1;
  int64_t wgrad = 1;
  /// Duration of a forward and the whole backward directly after it if they overlap, for another
  /// microbatch or virtual stage. Both start when both are ready. 0: they run one after the other.
  int64_t pair = 0;
};

/// A job and its interval [begin, end).
struct JobSlot {
  Job job;
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const JobSlot&, const JobSlot&) = default;
};

/// Computes when the jobs of each rank run if each rank runs its jobs in order, each as soon as
/// possible, and messages take no time. The first job starts at 0. Throws InternalError with rank
/// and job unless every job of the pipeline occurs once (a backward whole or split), forwards
/// precede their backwards, dgrads precede their wgrads, and the ranks do not wait for each other
/// in a circle. Near-linear in jobs.
std::vector<std::vector<JobSlot>> time_schedules(const ScheduleOptions& options,
                                                 const std::vector<Schedule>& schedules,
                                                 const JobCosts& costs = {});

struct ScheduleStats {
  int64_t total_time = 0;                ///< time at which the last job of any rank ends
  std::vector<int64_t> idle_time;        ///< by rank: part of total_time
  std::vector<int64_t> inner_idle_time;  ///< by rank: idle time between its own first and last job
  double bubble_fraction = 0;            ///< idle time of all ranks / (total_time * ranks)
  /// By rank: peak number of (virtual stage, microbatch) pairs whose activations are held at once,
  /// from the forward to the end of the backward (of the wgrad if the backward is split).
  std::vector<int64_t> peak_activations;
};

ScheduleStats schedule_stats(const std::vector<std::vector<JobSlot>>& slots);
/// Stats of the schedule with these options. Throws ConfigError as `check_schedule`.
ScheduleStats schedule_stats(const ScheduleOptions& options, const JobCosts& costs = {});

}  // namespace braid
