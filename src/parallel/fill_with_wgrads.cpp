#include <deque>

#include "base/errors.h"
#include "parallel/schedule_orders.h"

namespace braid {
namespace {

/// Runs all ranks of a pipeline, one time unit after another.
class WgradFiller {
 public:
  WgradFiller(const ScheduleOptions& options, const std::vector<Schedule>& orders,
              int64_t max_activations)
      : options_(options),
        orders_(orders),
        max_activations_(max_activations),
        ranks_(orders.size()),
        forward_done_(num_pairs(options), kNever),
        dgrad_done_(num_pairs(options), kNever) {
    check(orders.size() == static_cast<size_t>(options.num_ranks), "orders of {} ranks, not {}",
          orders.size(), options.num_ranks);
  }

  std::vector<Schedule> run() {
    for (int64_t now = 0; !is_finished(); ++now) {
      bool any_ran = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        any_ran |= step(rank, now);
      }
      check(any_ran, "no rank of the pipeline can go on at unit {}", now);
    }
    std::vector<Schedule> schedules;
    for (RankState& rank : ranks_) {
      schedules.push_back(std::move(rank.jobs));
    }
    return schedules;
  }

 private:
  static constexpr int64_t kNever = INT64_MAX;

  struct RankState {
    Schedule jobs;
    size_t next = 0;         // index of the next job in the rank's order
    std::deque<Job> wgrads;  // wgrads of finished dgrads, not run yet
    int64_t num_activations = 0;
  };

  static size_t num_pairs(const ScheduleOptions& options) {
    return static_cast<size_t>(options.num_stages()) *
           static_cast<size_t>(options.num_microbatches);
  }

  size_t pair_of(int stage, int32_t microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(options_.num_microbatches) +
           static_cast<size_t>(microbatch);
  }

  bool is_finished() const {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next < orders_[rank].size() || !ranks_[rank].wgrads.empty()) {
        return false;
      }
    }
    return true;
  }

  bool is_ready(const Job& job, int stage, int64_t now) const {
    const bool is_last = stage + 1 == options_.num_stages();
    if (job.kind == JobKind::kForward) {
      return stage == 0 || forward_done_[pair_of(stage - 1, job.microbatch)] <= now;
    }
    return forward_done_[pair_of(stage, job.microbatch)] <= now &&
           (is_last || dgrad_done_[pair_of(stage + 1, job.microbatch)] <= now);
  }

  /// Runs a job of the rank from `now` to `now + 1`. Returns false if none can run.
  bool step(size_t rank, int64_t now) {
    RankState& state = ranks_[rank];
    if (state.next < orders_[rank].size()) {
      const Job& job = orders_[rank][state.next];
      const int stage = stage_of(options_, static_cast<int>(rank), job.virtual_stage);
      const bool fits = job.kind != JobKind::kForward || state.num_activations < max_activations_;
      if (fits && is_ready(job, stage, now)) {
        run_next(state, job, stage, now);
        return true;
      }
    }
    if (state.wgrads.empty()) {
      return false;
    }
    state.jobs.push_back(state.wgrads.front());
    state.wgrads.pop_front();
    --state.num_activations;
    return true;
  }

  void run_next(RankState& state, const Job& job, int stage, int64_t now) {
    state.jobs.push_back(job);
    ++state.next;
    if (job.kind == JobKind::kForward) {
      forward_done_[pair_of(stage, job.microbatch)] = now + 1;
      ++state.num_activations;
    } else {
      dgrad_done_[pair_of(stage, job.microbatch)] = now + 1;
      state.wgrads.push_back({.kind = JobKind::kWgrad,
                              .microbatch = job.microbatch,
                              .virtual_stage = job.virtual_stage});
    }
  }

  const ScheduleOptions& options_;
  const std::vector<Schedule>& orders_;
  int64_t max_activations_;
  std::vector<RankState> ranks_;
  std::vector<int64_t> forward_done_;  // by stage and microbatch: time at which the forward ends
  std::vector<int64_t> dgrad_done_;
};

}  // namespace

std::vector<Schedule> fill_with_wgrads(const ScheduleOptions& options,
                                       const std::vector<Schedule>& orders,
                                       int64_t max_activations) {
  return WgradFiller(options, orders, max_activations).run();
}

}  // namespace braid
