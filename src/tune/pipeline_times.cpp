#include "tune/pipeline_times.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

constexpr int64_t kNotYet = -1;

/// Runs jobs rank by rank, each as far as what it reads is there, until all have run.
class JobClock {
 public:
  JobClock(const ScheduleOptions& options, const std::vector<Schedule>& schedules,
           std::span<const StageTimes> stages, int64_t message_ns)
      : options_(options),
        schedules_(schedules),
        stages_(stages),
        message_ns_(message_ns),
        next_(schedules.size(), 0),
        free_at_(schedules.size(), 0),
        forward_sent_(stages.size() * static_cast<size_t>(options.num_microbatches), kNotYet),
        dgrad_sent_(forward_sent_.size(), kNotYet) {}

  std::vector<int64_t> run() {
    for (bool any_ran = true; any_ran;) {
      any_ran = false;
      for (size_t rank = 0; rank < schedules_.size(); ++rank) {
        while (next_[rank] < schedules_[rank].size() && run_next(rank)) {
          any_ran = true;
        }
      }
    }
    for (size_t rank = 0; rank < schedules_.size(); ++rank) {
      check(next_[rank] == schedules_[rank].size(), "rank {} of the pipeline waits for ever", rank);
    }
    return std::move(free_at_);
  }

 private:
  int64_t& at(std::vector<int64_t>& times, int stage, const Job& job) const {
    return times[static_cast<size_t>(stage) * static_cast<size_t>(options_.num_microbatches) +
                 static_cast<size_t>(job.microbatch)];
  }

  /// When what was sent arrives; at once where the other stage is on the same rank.
  int64_t arrival(int64_t sent, int from, int to) const {
    const bool here = place_of(options_, from).rank == place_of(options_, to).rank;
    return sent == kNotYet || here ? sent : sent + message_ns_;
  }

  int64_t ready_at(int stage, const Job& job) {
    const int last = static_cast<int>(stages_.size()) - 1;
    switch (job.kind) {
      case JobKind::kForward:
        return stage == 0 ? 0 : arrival(at(forward_sent_, stage - 1, job), stage - 1, stage);
      case JobKind::kWgrad:
        return at(dgrad_sent_, stage, job);
      default:
        return stage == last ? at(forward_sent_, stage, job)
                             : arrival(at(dgrad_sent_, stage + 1, job), stage + 1, stage);
    }
  }

  bool run_next(size_t rank) {
    const Job& job = schedules_[rank][next_[rank]];
    const int stage = stage_of(options_, static_cast<int>(rank), job.virtual_stage);
    const int64_t ready = ready_at(stage, job);
    if (ready == kNotYet) {
      return false;
    }
    const StageTimes& times = stages_[static_cast<size_t>(stage)];
    int64_t& now = free_at_[rank];
    now = std::max(now, ready);
    switch (job.kind) {
      case JobKind::kForward:
        now += times.forward_ns;
        at(forward_sent_, stage, job) = now;
        break;
      case JobKind::kDgrad:
        now += times.dgrad_ns;
        at(dgrad_sent_, stage, job) = now;
        break;
      case JobKind::kWgrad:
        now += times.wgrad_ns;
        break;
      case JobKind::kBackward:
        now += times.dgrad_ns + times.wgrad_ns;
        at(dgrad_sent_, stage, job) = now - times.delayed_ns;
        break;
    }
    ++next_[rank];
    return true;
  }

  const ScheduleOptions& options_;
  const std::vector<Schedule>& schedules_;
  std::span<const StageTimes> stages_;
  int64_t message_ns_;
  std::vector<size_t> next_;
  std::vector<int64_t> free_at_;       // by rank
  std::vector<int64_t> forward_sent_;  // by stage and microbatch
  std::vector<int64_t> dgrad_sent_;
};

}  // namespace

std::vector<int64_t> end_times(const ScheduleOptions& options,
                               const std::vector<Schedule>& schedules,
                               std::span<const StageTimes> stages, int64_t message_ns) {
  check(stages.size() == static_cast<size_t>(options.num_stages()),
        "times of {} stages, but the pipeline has {}", stages.size(), options.num_stages());
  return JobClock(options, schedules, stages, message_ns).run();
}

int64_t most_activations(const ScheduleOptions& options, int rank) {
  const int64_t ranks = options.num_ranks;
  const int64_t group = options.group_size > 0 ? options.group_size : ranks;
  const int64_t all = options.num_microbatches * options.virtual_stages;
  switch (options.kind) {
    case ScheduleKind::kGpipe:
      return all;
    case ScheduleKind::kOneForwardOneBackward:
      return std::min(all, ranks - rank);
    case ScheduleKind::kInterleaved:
      return std::min(all, 2 * (ranks - rank - 1) + (options.virtual_stages - 1) * group + 1);
    case ScheduleKind::kZbH1:
      return std::min(all, ranks);
    case ScheduleKind::kZbV:
      return std::min(all, 2 * ranks);
    case ScheduleKind::kDualpipeV:
      return std::min(all, 2 * ranks + 1);
  }
  return all;
}

}  // namespace braid
