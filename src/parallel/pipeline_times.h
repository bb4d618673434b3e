#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// Durations of the jobs of a global stage, in ns or any other unit.
struct StageTimes {
  int64_t forward_ns = 0;
  int64_t dgrad_ns = 0;
  int64_t wgrad_ns = 0;
  int64_t delayed_ns = 0;  ///< part of a whole backward that comes after its message: delayed
                           ///< weight gradients
};

/// Number of jobs of a global stage by kind. A whole backward counts as a dgrad and a wgrad.
struct JobCounts {
  int64_t forwards = 0;
  int64_t dgrads = 0;
  int64_t wgrads = 0;
};

/// Numbers of (virtual stage, microbatch) pairs whose activations a rank holds at one moment: those
/// whose backward has not ended, and of split backwards those that wait for their wgrad alone.
struct HeldPairs {
  int64_t for_backward = 0;
  int64_t for_wgrad = 0;

  friend bool operator==(const HeldPairs&, const HeldPairs&) = default;
};

/// Computes when the jobs of a schedule end if each rank runs its jobs in order, each as soon as
/// possible. Like `time_schedules`, but supports stages of different sizes and finds the
/// dependencies only once, so that it can time many layouts. Immutable and therefore thread-safe.
class PipelineClock {
 public:
  /// `schedules` are `make_schedules(options)`. Throws InternalError if ranks wait for each other
  /// in a circle, or if a job waits for one that never runs.
  PipelineClock(const ScheduleOptions& options, const std::vector<Schedule>& schedules);
  /// Throws ConfigError as `make_schedules`.
  explicit PipelineClock(const ScheduleOptions& options);

  /// Returns by rank when its last job ends. A message arrives `message_ns` after it was sent.
  /// `stages` is in model order. Linear in jobs: a few ns per job.
  std::vector<int64_t> end_times(std::span<const StageTimes> stages, int64_t message_ns) const;

  /// Counts the jobs, by stage, on one critical path from the start to the last end, if messages
  /// take no time. The step gets shorter only if one of these jobs does. Treats `delayed_ns` as 0.
  std::vector<JobCounts> critical_jobs(std::span<const StageTimes> stages) const;

  /// Returns by rank the peak sum of `sizes` (by stage) over the (stage, microbatch) pairs whose
  /// activations it holds at once. They are held from the forward to the end of the backward.
  std::vector<int64_t> peak_activations(std::span<const int64_t> sizes) const;

  /// Returns by rank all moments at which it holds most: at no other moment does it hold at least
  /// as many pairs of both kinds.
  std::vector<std::vector<HeldPairs>> most_held() const;

  /// Returns by job of `rank`, in order: how many jobs of `peer`, its first ones, must have begun
  /// when the job has what it reads. Linear in the jobs of all ranks.
  std::vector<int64_t> known_begun(int rank, int peer) const;

  size_t num_jobs() const { return jobs_.size(); }

 private:
  /// Jobs are sorted so that no job waits for a later one.
  struct TimedJob {
    JobKind kind = JobKind::kForward;
    bool crosses = false;  // input comes from another rank
    int32_t rank = 0;
    int32_t stage = 0;
    int32_t input = -1;  // index of the job whose result it reads; -1: it waits only for its rank
    int32_t previous = -1;  // index of the previous job of its rank; -1: none
  };

  void check_stages(size_t given) const;

  size_t num_ranks_;
  size_t num_stages_;
  std::vector<TimedJob> jobs_;

  friend class JobSorter;
};

/// Upper bound of the activations that a rank holds, in (virtual stage, microbatch) pairs: the
/// bounds of docs/pipeline.md, limited by the number of existing pairs.
int64_t most_activations(const ScheduleOptions& options, int rank);

}  // namespace braid
