#include "parallel/schedule_stats.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

class PipelineTimer {
 public:
  PipelineTimer(const ScheduleOptions& options, const std::vector<Schedule>& schedules,
                const JobCosts& costs)
      : options_(options),
        schedules_(schedules),
        costs_(costs),
        slots_(schedules.size()),
        free_at_(schedules.size()),
        forward_end_(num_pairs(), kNotYet),
        dgrad_end_(num_pairs(), kNotYet),
        has_wgrad_(num_pairs()) {
    check(schedules.size() == static_cast<size_t>(options.num_ranks),
          "schedules of {} ranks, but the pipeline has {}", schedules.size(), options.num_ranks);
  }

  std::vector<std::vector<JobSlot>> run() {
    for (bool any_ran = true; any_ran;) {
      any_ran = false;
      for (size_t rank = 0; rank < schedules_.size(); ++rank) {
        any_ran |= run_rank(rank);
      }
    }
    check_all_ran();
    return std::move(slots_);
  }

 private:
  static constexpr int64_t kNotYet = -1;

  size_t num_pairs() const {
    return static_cast<size_t>(options_.num_stages()) *
           static_cast<size_t>(options_.num_microbatches);
  }
  size_t pair_of(int stage, int32_t microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(options_.num_microbatches) +
           static_cast<size_t>(microbatch);
  }
  int stage_on(size_t rank, const Job& job) const {
    return stage_of(options_, static_cast<int>(rank), job.virtual_stage);
  }

  bool run_rank(size_t rank) {
    bool any_ran = false;
    while (slots_[rank].size() < schedules_[rank].size() && run_next(rank)) {
      any_ran = true;
    }
    return any_ran;
  }

  /// Number of jobs, starting at `index`, that run as one.
  size_t jobs_at_once(size_t rank, size_t index) const {
    const Schedule& jobs = schedules_[rank];
    if (costs_.pair == 0 || index + 1 == jobs.size()) {
      return 1;
    }
    const Job& first = jobs[index];
    const Job& second = jobs[index + 1];
    const bool is_pair =
        first.kind == JobKind::kForward && second.kind == JobKind::kBackward &&
        (first.microbatch != second.microbatch || first.virtual_stage != second.virtual_stage);
    return is_pair ? 2 : 1;
  }

  bool run_next(size_t rank) {
    const size_t index = slots_[rank].size();
    const size_t num_jobs = jobs_at_once(rank, index);
    int64_t begin = free_at_[rank];
    for (size_t i = index; i < index + num_jobs; ++i) {
      const int64_t ready = ready_at(rank, schedules_[rank][i]);
      if (ready == kNotYet) {
        return false;
      }
      begin = std::max(begin, ready);
    }
    const int64_t end = begin + (num_jobs == 2 ? costs_.pair : cost_of(schedules_[rank][index]));
    for (size_t i = index; i < index + num_jobs; ++i) {
      finish(rank, schedules_[rank][i], end);
      slots_[rank].push_back({.job = schedules_[rank][i], .begin = begin, .end = end});
    }
    free_at_[rank] = end;
    return true;
  }

  int64_t cost_of(const Job& job) const {
    switch (job.kind) {
      case JobKind::kForward:
        return costs_.forward;
      case JobKind::kDgrad:
        return costs_.dgrad;
      case JobKind::kWgrad:
        return costs_.wgrad;
      case JobKind::kBackward:
        break;
    }
    return costs_.dgrad + costs_.wgrad;
  }

  /// Time at which everything that the job reads is available; kNotYet if it is not known yet.
  int64_t ready_at(size_t rank, const Job& job) const {
    check(job.microbatch >= 0 && job.microbatch < options_.num_microbatches,
          "rank {}: job {} has no microbatch of {}", rank, name(job), options_.num_microbatches);
    const int stage = stage_on(rank, job);
    if (job.kind == JobKind::kForward) {
      return stage == 0 ? 0 : forward_end_[pair_of(stage - 1, job.microbatch)];
    }
    if (job.kind == JobKind::kWgrad) {
      return dgrad_end_[pair_of(stage, job.microbatch)];
    }
    const int64_t own = forward_end_[pair_of(stage, job.microbatch)];
    if (own == kNotYet || stage + 1 == options_.num_stages()) {
      return own;
    }
    const int64_t next = dgrad_end_[pair_of(stage + 1, job.microbatch)];
    return next == kNotYet ? kNotYet : std::max(own, next);
  }

  void finish(size_t rank, const Job& job, int64_t end) {
    const size_t pair = pair_of(stage_on(rank, job), job.microbatch);
    bool again = false;
    if (job.kind == JobKind::kForward) {
      again = std::exchange(forward_end_[pair], end) != kNotYet;
    } else if (job.kind != JobKind::kWgrad) {
      again = std::exchange(dgrad_end_[pair], end) != kNotYet;
    }
    if (job.kind == JobKind::kWgrad || job.kind == JobKind::kBackward) {
      again |= has_wgrad_[pair];
      has_wgrad_[pair] = true;
    }
    check(!again, "rank {}: job {} occurs twice", rank, name(job));
  }

  void check_all_ran() const {
    for (size_t rank = 0; rank < schedules_.size(); ++rank) {
      const size_t ran = slots_[rank].size();
      check(ran == schedules_[rank].size(), "rank {}: job {} waits for ever", rank,
            ran < schedules_[rank].size() ? name(schedules_[rank][ran]) : "");
      check_complete(rank);
    }
  }

  void check_complete(size_t rank) const {
    for (int32_t microbatch = 0; microbatch < options_.num_microbatches; ++microbatch) {
      for (int stage = 0; stage < options_.virtual_stages; ++stage) {
        const Job job{.microbatch = microbatch, .virtual_stage = stage};
        const size_t pair = pair_of(stage_on(rank, job), microbatch);
        check(forward_end_[pair] != kNotYet && dgrad_end_[pair] != kNotYet && has_wgrad_[pair],
              "rank {}: microbatch {} does not pass virtual stage {} forward and backward", rank,
              microbatch, stage);
      }
    }
  }

  static std::string name(const Job& job) { return to_string(Schedule{job}); }

  const ScheduleOptions& options_;
  const std::vector<Schedule>& schedules_;
  const JobCosts& costs_;
  std::vector<std::vector<JobSlot>> slots_;
  std::vector<int64_t> free_at_;      // by rank: when it can start its next job
  std::vector<int64_t> forward_end_;  // by stage and microbatch
  std::vector<int64_t> dgrad_end_;
  std::vector<bool> has_wgrad_;
};

int64_t busy_time(const std::vector<JobSlot>& slots) {
  int64_t busy = 0;
  int64_t last_begin = -1;
  for (const JobSlot& slot : slots) {
    busy += slot.begin == last_begin ? 0 : slot.end - slot.begin;  // count a pair once
    last_begin = slot.end > slot.begin ? slot.begin : last_begin;
  }
  return busy;
}

int64_t peak_activations(const std::vector<JobSlot>& slots) {
  int64_t held = 0;
  int64_t peak = 0;
  for (const JobSlot& slot : slots) {
    held += slot.job.kind == JobKind::kForward ? 1 : 0;
    peak = std::max(peak, held);
    held -= slot.job.kind == JobKind::kBackward || slot.job.kind == JobKind::kWgrad ? 1 : 0;
  }
  return peak;
}

}  // namespace

std::vector<std::vector<JobSlot>> time_schedules(const ScheduleOptions& options,
                                                 const std::vector<Schedule>& schedules,
                                                 const JobCosts& costs) {
  return PipelineTimer(options, schedules, costs).run();
}

ScheduleStats schedule_stats(const std::vector<std::vector<JobSlot>>& slots) {
  ScheduleStats stats;
  for (const std::vector<JobSlot>& rank : slots) {
    stats.total_time = std::max(stats.total_time, rank.empty() ? 0 : rank.back().end);
  }
  int64_t all_idle = 0;
  for (const std::vector<JobSlot>& rank : slots) {
    const int64_t busy = busy_time(rank);
    stats.idle_time.push_back(stats.total_time - busy);
    stats.inner_idle_time.push_back(rank.empty() ? 0 : rank.back().end - rank.front().begin - busy);
    stats.peak_activations.push_back(peak_activations(rank));
    all_idle += stats.idle_time.back();
  }
  if (stats.total_time > 0) {
    stats.bubble_fraction = static_cast<double>(all_idle) / (static_cast<double>(stats.total_time) *
                                                             static_cast<double>(slots.size()));
  }
  return stats;
}

ScheduleStats schedule_stats(const ScheduleOptions& options, const JobCosts& costs) {
  return schedule_stats(time_schedules(options, make_schedules(options), costs));
}

}  // namespace braid
