#pragma once

#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// Two jobs to run as one. Only wgrads may stand between them.
struct JobPair {
  Job first;
  Job second;

  friend bool operator==(const JobPair&, const JobPair&) = default;
};

/// The pairs of a schedule with ScheduleOptions::pairs, in schedule order. Lists only pairs that
/// cannot make the ranks of a pipeline wait for each other in a circle, on whichever ranks and
/// however many of them are run as one job. A neighbouring forward and backward may therefore be
/// missing, for example the last forward of a warmup that has all microbatches and the backward
/// after it. Throws ConfigError as `check_schedule`.
std::vector<JobPair> paired_jobs(const ScheduleOptions& options, int rank);

}  // namespace braid
