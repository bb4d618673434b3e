#pragma once

#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// Two jobs, one directly behind the other but for wgrads, that are to run as one.
struct JobPair {
  Job first;
  Job second;

  friend bool operator==(const JobPair&, const JobPair&) = default;
};

/// The pairs of a schedule with ScheduleOptions::pairs, in its order: those that make the ranks of
/// a pipeline wait for each other in no circle, on whichever ranks and however many of them run as
/// one. A forward and a backward may be neighbours without being one of these: those of the last
/// forward of a warm-up that has all microbatches, for example. Throws ConfigError as
/// `check_schedule`.
std::vector<JobPair> paired_jobs(const ScheduleOptions& options, int rank);

}  // namespace braid
