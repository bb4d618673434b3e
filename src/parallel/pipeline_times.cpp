#include "parallel/pipeline_times.h"

#include <algorithm>
#include <map>

#include "base/errors.h"

namespace braid {

/// Sorts all jobs so that each follows the jobs it depends on: runs each rank until it reads
/// something that is not available yet.
class JobSorter {
 public:
  JobSorter(const ScheduleOptions& options, const std::vector<Schedule>& schedules,
            std::vector<PipelineClock::TimedJob>& jobs)
      : options_(options),
        schedules_(schedules),
        jobs_(jobs),
        next_(schedules.size(), 0),
        last_(schedules.size(), kNone),
        forwards_(static_cast<size_t>(options.num_stages() * options.num_microbatches), kNone),
        dgrads_(forwards_.size(), kNone) {}

  void run() {
    for (bool any_ran = true; any_ran;) {
      any_ran = false;
      for (size_t rank = 0; rank < schedules_.size(); ++rank) {
        while (next_[rank] < schedules_[rank].size() && add_next(rank)) {
          any_ran = true;
        }
      }
    }
    for (size_t rank = 0; rank < schedules_.size(); ++rank) {
      check(next_[rank] == schedules_[rank].size(), "rank {} of the pipeline waits forever", rank);
    }
  }

 private:
  static constexpr int32_t kNone = -1;

  int32_t& at(std::vector<int32_t>& indices, int stage, const Job& job) const {
    return indices[static_cast<size_t>(stage) * static_cast<size_t>(options_.num_microbatches) +
                   static_cast<size_t>(job.microbatch)];
  }

  /// The stage whose job produces what this job reads; its own stage if its own rank produced it.
  int input_stage(int stage, JobKind kind) const {
    const int last = options_.num_stages() - 1;
    switch (kind) {
      case JobKind::kForward:
        return std::max(stage - 1, 0);
      case JobKind::kWgrad:
        return stage;
      default:
        return std::min(stage + 1, last);
    }
  }

  /// The job of stage `from` that produces the input. kNone: it has not run yet.
  int32_t input_job(int stage, int from, const Job& job) {
    const bool is_last_backward = stage == from && job.kind != JobKind::kWgrad;
    return job.kind == JobKind::kForward || is_last_backward ? at(forwards_, from, job)
                                                             : at(dgrads_, from, job);
  }

  bool add_next(size_t rank) {
    const Job& job = schedules_[rank][next_[rank]];
    const int stage = stage_of(options_, static_cast<int>(rank), job.virtual_stage);
    const int from = input_stage(stage, job.kind);
    const bool is_first = job.kind == JobKind::kForward && stage == 0;
    const int32_t input = is_first ? kNone : input_job(stage, from, job);
    if (input == kNone && !is_first) {
      return false;
    }
    const auto index = static_cast<int32_t>(jobs_.size());
    jobs_.push_back({.kind = job.kind,
                     .crosses = place_of(options_, from).rank != static_cast<int>(rank),
                     .rank = static_cast<int32_t>(rank),
                     .stage = stage,
                     .input = from == stage ? kNone : input,
                     .previous = last_[rank]});
    last_[rank] = index;
    if (job.kind == JobKind::kForward) {
      at(forwards_, stage, job) = index;
    } else if (job.kind != JobKind::kWgrad) {
      at(dgrads_, stage, job) = index;
    }
    ++next_[rank];
    return true;
  }

  const ScheduleOptions& options_;
  const std::vector<Schedule>& schedules_;
  std::vector<PipelineClock::TimedJob>& jobs_;
  std::vector<size_t> next_;       // by rank: index of the next job in its schedule
  std::vector<int32_t> last_;      // by rank: index of its last job
  std::vector<int32_t> forwards_;  // by stage and microbatch
  std::vector<int32_t> dgrads_;
};

namespace {

/// Durations of a stage's jobs by kind, and the part that comes after the job's message.
struct KindTimes {
  std::array<int64_t, 4> all{};
  int64_t delayed = 0;
};

std::vector<KindTimes> by_kind(std::span<const StageTimes> stages) {
  std::vector<KindTimes> list;
  list.reserve(stages.size());
  for (const StageTimes& it : stages) {
    list.push_back(
        {{it.forward_ns, it.dgrad_ns + it.wgrad_ns, it.dgrad_ns, it.wgrad_ns}, it.delayed_ns});
  }
  return list;
}

}  // namespace

PipelineClock::PipelineClock(const ScheduleOptions& options, const std::vector<Schedule>& schedules)
    : num_ranks_(schedules.size()), num_stages_(static_cast<size_t>(options.num_stages())) {
  JobSorter(options, schedules, jobs_).run();
}

PipelineClock::PipelineClock(const ScheduleOptions& options)
    : PipelineClock(options, make_schedules(options)) {}

void PipelineClock::check_stages(size_t given) const {
  check(given == num_stages_, "sizes of {} stages, but the pipeline has {}", given, num_stages_);
}

std::vector<int64_t> PipelineClock::end_times(std::span<const StageTimes> stages,
                                              int64_t message_ns) const {
  check_stages(stages.size());
  const std::vector<KindTimes> times = by_kind(stages);
  std::vector<int64_t> free_at(num_ranks_, 0);
  std::vector<int64_t> sent(jobs_.size());
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const TimedJob& job = jobs_[i];
    const KindTimes& stage = times[static_cast<size_t>(job.stage)];
    int64_t& now = free_at[static_cast<size_t>(job.rank)];
    if (job.input >= 0) {
      now = std::max(now, sent[static_cast<size_t>(job.input)] + (job.crosses ? message_ns : 0));
    }
    now += stage.all[static_cast<size_t>(job.kind)];
    sent[i] = job.kind == JobKind::kBackward ? now - stage.delayed : now;
  }
  return free_at;
}

std::vector<JobCounts> PipelineClock::critical_jobs(std::span<const StageTimes> stages) const {
  check_stages(stages.size());
  const std::vector<KindTimes> times = by_kind(stages);
  std::vector<int64_t> ends(jobs_.size());
  const auto end_of = [&](int32_t job) { return job < 0 ? 0 : ends[static_cast<size_t>(job)]; };
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const TimedJob& job = jobs_[i];
    ends[i] = std::max(end_of(job.previous), end_of(job.input)) +
              times[static_cast<size_t>(job.stage)].all[static_cast<size_t>(job.kind)];
  }
  std::vector<JobCounts> counts(num_stages_);
  auto at = static_cast<int32_t>(std::ranges::max_element(ends) - ends.begin());
  while (at >= 0) {
    const TimedJob& job = jobs_[static_cast<size_t>(at)];
    JobCounts& count = counts[static_cast<size_t>(job.stage)];
    count.forwards += job.kind == JobKind::kForward ? 1 : 0;
    count.dgrads += job.kind == JobKind::kDgrad || job.kind == JobKind::kBackward ? 1 : 0;
    count.wgrads += job.kind == JobKind::kWgrad || job.kind == JobKind::kBackward ? 1 : 0;
    at = end_of(job.previous) >= end_of(job.input) ? job.previous : job.input;
  }
  return counts;
}

std::vector<int64_t> PipelineClock::peak_activations(std::span<const int64_t> sizes) const {
  check_stages(sizes.size());
  std::vector<int64_t> held(num_ranks_, 0);
  std::vector<int64_t> peak(num_ranks_, 0);
  for (const TimedJob& job : jobs_) {
    const auto rank = static_cast<size_t>(job.rank);
    const int64_t size = sizes[static_cast<size_t>(job.stage)];
    held[rank] += job.kind == JobKind::kForward ? size : 0;
    peak[rank] = std::max(peak[rank], held[rank]);
    held[rank] -= job.kind == JobKind::kBackward || job.kind == JobKind::kWgrad ? size : 0;
  }
  return peak;
}

std::vector<std::vector<HeldPairs>> PipelineClock::most_held() const {
  std::vector<HeldPairs> held(num_ranks_);
  std::vector<std::map<int64_t, int64_t>> most(num_ranks_);  // for_wgrad by for_backward
  for (const TimedJob& job : jobs_) {
    const auto rank = static_cast<size_t>(job.rank);
    HeldPairs& now = held[rank];
    now.for_backward += job.kind == JobKind::kForward ? 1 : 0;
    now.for_backward -= job.kind == JobKind::kDgrad || job.kind == JobKind::kBackward ? 1 : 0;
    now.for_wgrad += job.kind == JobKind::kDgrad ? 1 : 0;
    int64_t& found = most[rank][now.for_backward];
    found = std::max(found, now.for_wgrad);
    now.for_wgrad -= job.kind == JobKind::kWgrad ? 1 : 0;
  }
  std::vector<std::vector<HeldPairs>> list(num_ranks_);
  for (size_t rank = 0; rank < num_ranks_; ++rank) {
    int64_t most_for_wgrad = -1;  // of moments with more pairs that wait for their backward
    for (auto it = most[rank].rbegin(); it != most[rank].rend(); ++it) {
      if (it->second > most_for_wgrad) {
        most_for_wgrad = it->second;
        list[rank].push_back({it->first, it->second});
      }
    }
  }
  return list;
}

std::vector<int64_t> PipelineClock::known_begun(int rank, int peer) const {
  std::vector<int64_t> known(jobs_.size(), 0);  // by job, from when it has what it reads
  const auto known_of = [&](int32_t job) { return job < 0 ? 0 : known[static_cast<size_t>(job)]; };
  std::vector<int64_t> of_rank;
  int64_t num_begun = 0;  // jobs of the peer so far
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const TimedJob& job = jobs_[i];
    known[i] =
        job.rank == peer ? ++num_begun : std::max(known_of(job.previous), known_of(job.input));
    if (job.rank == rank) {
      of_rank.push_back(known[i]);
    }
  }
  return of_rank;
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
