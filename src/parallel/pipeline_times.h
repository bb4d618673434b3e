#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// Durations of the jobs of a global stage, in nanoseconds or any other unit.
struct StageTimes {
  int64_t forward_ns = 0;
  int64_t dgrad_ns = 0;
  int64_t wgrad_ns = 0;
  int64_t delayed_ns = 0;  ///< of a whole backward: weight gradients behind its message
};

/// How many jobs of a global stage there are of each kind; a whole backward is a dgrad and a wgrad.
struct JobCounts {
  int64_t forwards = 0;
  int64_t dgrads = 0;
  int64_t wgrads = 0;
};

/// When the jobs of a schedule end if each rank does its own in order, as soon as it can. What
/// `time_schedules` does, for stages of different sizes, and prepared for many of them: what waits
/// for what is found once. Immutable, thus thread-safe.
class PipelineClock {
 public:
  /// `schedules` of `options`, as `make_schedules` gives them. Throws InternalError if the ranks
  /// wait for each other, or a job for one that never runs.
  PipelineClock(const ScheduleOptions& options, const std::vector<Schedule>& schedules);
  /// Throws ConfigError as `make_schedules`.
  explicit PipelineClock(const ScheduleOptions& options);

  /// When the last job of each rank ends; a message arrives `message_ns` after it was sent.
  /// `stages` in the order of the model. Linear in jobs: some ns for each.
  std::vector<int64_t> end_times(std::span<const StageTimes> stages, int64_t message_ns) const;

  /// Jobs, by stage, of one chain of jobs that wait for each other from the start to the last end,
  /// if messages take no time: no step is shorter unless one of them is. `delayed_ns` is taken as
  /// 0.
  std::vector<JobCounts> critical_jobs(std::span<const StageTimes> stages) const;

  /// By rank: the largest sum of `sizes` (by stage) over the (stage, microbatch) pairs whose
  /// activations it holds at once, from the forward to the end of the backward.
  std::vector<int64_t> peak_activations(std::span<const int64_t> sizes) const;

  size_t num_jobs() const { return jobs_.size(); }

 private:
  /// In an order in which no job waits for a later one.
  struct TimedJob {
    JobKind kind = JobKind::kForward;
    bool crosses = false;  // its input comes from another rank
    int32_t rank = 0;
    int32_t stage = 0;
    int32_t input = -1;  // index of the job whose result it waits for; -1: of none but its rank's
    int32_t previous = -1;  // of the one before it on its rank
  };

  void check_stages(size_t given) const;

  size_t num_ranks_;
  size_t num_stages_;
  std::vector<TimedJob> jobs_;

  friend class JobSorter;
};

/// Activations that a rank keeps at most, in (virtual stage, microbatch) pairs: the bounds of
/// docs/pipeline.md, and no more than there are.
int64_t most_activations(const ScheduleOptions& options, int rank);

}  // namespace braid
