#include "parallel/pipeline_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "base/errors.h"
#include "parallel/schedule_stats.h"

namespace braid {
namespace {

/// Schedules of all kinds, of random sizes that they allow.
std::vector<ScheduleOptions> random_schedules() {
  std::mt19937 random(11);
  std::vector<ScheduleOptions> list;
  for (const ScheduleKind kind :
       {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved,
        ScheduleKind::kZbH1, ScheduleKind::kZbV, ScheduleKind::kDualpipeV}) {
    for (int i = 0; i < 8; ++i) {
      const int ranks = 2 + static_cast<int>(random() % 6);
      const bool is_v = kind == ScheduleKind::kZbV || kind == ScheduleKind::kDualpipeV;
      const int stages = is_v                                 ? 2
                         : kind == ScheduleKind::kInterleaved ? 2 + static_cast<int>(random() % 3)
                                                              : 1;
      list.push_back({.kind = kind,
                      .num_ranks = ranks,
                      .virtual_stages = stages,
                      .num_microbatches = ranks * (2 + static_cast<int64_t>(random() % 4))});
    }
  }
  return list;
}

std::string describe(const ScheduleOptions& options) {
  return std::string(schedule_name(options.kind)) + " " + std::to_string(options.num_ranks) + " " +
         std::to_string(options.virtual_stages) + " " + std::to_string(options.num_microbatches);
}

TEST(PipelineTimes, EvenStagesTakeWhatTheScheduleSays) {
  for (const ScheduleOptions& options : random_schedules()) {
    const std::vector<Schedule> schedules = make_schedules(options);
    const std::vector<StageTimes> stages(static_cast<size_t>(options.num_stages()), {7, 9, 5, 0});
    const std::vector<int64_t> ends = PipelineClock(options).end_times(stages, 0);
    const auto slots = time_schedules(options, schedules, {.forward = 7, .dgrad = 9, .wgrad = 5});
    ASSERT_EQ(ends.size(), slots.size());
    for (size_t rank = 0; rank < slots.size(); ++rank) {
      EXPECT_EQ(ends[rank], slots[rank].back().end) << describe(options) << " rank " << rank;
    }
  }
}

TEST(PipelineTimes, MessagesAndSlowStagesTakeTime) {
  const ScheduleOptions options{.num_ranks = 2, .num_microbatches = 1};
  const std::vector<StageTimes> stages{{10, 20, 30, 0}, {40, 50, 60, 60}};
  // F 10, message 3, F 40, dgrad 50, message 3 before the wgrad of 60, backward 20 + 30.
  EXPECT_EQ(PipelineClock(options).end_times(stages, 3),
            (std::vector<int64_t>{10 + 3 + 40 + 50 + 3 + 50, 10 + 3 + 40 + 50 + 60}));
}

TEST(PipelineTimes, CriticalJobsAddUpToTheLastEnd) {
  for (const ScheduleOptions& options : random_schedules()) {
    const PipelineClock clock(options);
    std::vector<StageTimes> stages;
    for (int stage = 0; stage < options.num_stages(); ++stage) {
      stages.push_back({7 + stage % 3, 9 + 2 * (stage % 4), 5 + stage % 2, 0});
    }
    const std::vector<JobCounts> jobs = clock.critical_jobs(stages);
    int64_t sum = 0;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      sum += jobs[stage].forwards * stages[stage].forward_ns +
             jobs[stage].dgrads * stages[stage].dgrad_ns +
             jobs[stage].wgrads * stages[stage].wgrad_ns;
    }
    EXPECT_EQ(sum, std::ranges::max(clock.end_times(stages, 0))) << describe(options);
  }
}

TEST(PipelineTimes, PeakActivationsAreThoseOfTheSchedule) {
  for (const ScheduleOptions& options : random_schedules()) {
    const std::vector<int64_t> sizes(static_cast<size_t>(options.num_stages()), 1);
    EXPECT_EQ(PipelineClock(options).peak_activations(sizes),
              schedule_stats(options).peak_activations)
        << describe(options);
  }
  // Rank 0 holds two microbatches, rank 1 one.
  const ScheduleOptions two{.num_ranks = 2, .num_microbatches = 4};
  EXPECT_EQ(PipelineClock(two).peak_activations(std::vector<int64_t>{3, 5}),
            (std::vector<int64_t>{6, 5}));
}

/// Everything that must have run before a job, found job by job.
class Ancestors {
 public:
  explicit Ancestors(const ScheduleOptions& options)
      : options_(options), schedules_(make_schedules(options)) {}

  /// Number of jobs of `peer` that must have begun before the job at `position` of `rank` runs.
  int64_t count(int rank, size_t position, int peer) const {
    std::set<std::pair<int, size_t>> found;
    add(rank, position, found);
    return std::ranges::count_if(found, [&](const auto& job) { return job.first == peer; });
  }

 private:
  void add(int rank, size_t position, std::set<std::pair<int, size_t>>& found) const {
    if (!found.emplace(rank, position).second) {
      return;
    }
    if (position > 0) {
      add(rank, position - 1, found);
    }
    const Job& job = schedules_[static_cast<size_t>(rank)][position];
    const int stage = stage_of(options_, rank, job.virtual_stage);
    const bool is_forward = job.kind == JobKind::kForward;
    const int from = is_forward ? stage - 1 : stage + 1;
    if (job.kind != JobKind::kWgrad && from >= 0 && from < options_.num_stages()) {
      const StagePlace place = place_of(options_, from);
      const Schedule& there = schedules_[static_cast<size_t>(place.rank)];
      const auto made = std::ranges::find_if(there, [&](const Job& it) {
        return it.microbatch == job.microbatch && it.virtual_stage == place.virtual_stage &&
               it.kind != JobKind::kWgrad && (it.kind == JobKind::kForward) == is_forward;
      });
      add(place.rank, static_cast<size_t>(made - there.begin()), found);
    }
  }

  ScheduleOptions options_;
  std::vector<Schedule> schedules_;
};

TEST(PipelineTimes, KnownJobsAreThoseThatMustHaveRunBefore) {
  for (const ScheduleOptions& options : random_schedules()) {
    const PipelineClock clock(options);
    const Ancestors ancestors(options);
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      for (const int peer : {(rank + 1) % options.num_ranks, 0}) {
        const std::vector<int64_t> known = clock.known_begun(rank, peer);
        for (size_t position = 0; position < known.size(); position += 3) {
          ASSERT_EQ(known[position], ancestors.count(rank, position, peer))
              << describe(options) << " rank " << rank << " peer " << peer << " job " << position;
        }
      }
    }
  }
}

TEST(PipelineTimes, MostHeldAreTheLargestMomentsOfTheSchedule) {
  for (const ScheduleOptions& options : random_schedules()) {
    const auto listed = PipelineClock(options).most_held();
    const std::vector<Schedule> schedules = make_schedules(options);
    ASSERT_EQ(listed.size(), schedules.size());
    for (size_t rank = 0; rank < schedules.size(); ++rank) {
      std::vector<HeldPairs> moments;
      HeldPairs now;
      for (const Job& job : schedules[rank]) {
        now.for_backward += job.kind == JobKind::kForward ? 1 : 0;
        now.for_backward -= job.kind == JobKind::kBackward || job.kind == JobKind::kDgrad ? 1 : 0;
        now.for_wgrad += job.kind == JobKind::kDgrad ? 1 : 0;
        moments.push_back(now);
        now.for_wgrad -= job.kind == JobKind::kWgrad ? 1 : 0;
      }
      EXPECT_EQ(now, HeldPairs());
      for (const HeldPairs& moment : moments) {
        EXPECT_TRUE(std::ranges::any_of(listed[rank], [&](const HeldPairs& it) {
          return it.for_backward >= moment.for_backward && it.for_wgrad >= moment.for_wgrad;
        })) << describe(options);
      }
      for (const HeldPairs& it : listed[rank]) {
        EXPECT_EQ(std::ranges::count(moments, it) > 0, true) << describe(options);
        EXPECT_EQ(std::ranges::count_if(listed[rank],
                                        [&](const HeldPairs& other) {
                                          return other.for_backward >= it.for_backward &&
                                                 other.for_wgrad >= it.for_wgrad;
                                        }),
                  1)
            << describe(options);
      }
    }
  }
}

TEST(PipelineTimes, RefusesRanksThatWaitForEachOther) {
  const ScheduleOptions options{.num_ranks = 2, .num_microbatches = 1};
  const std::vector<Schedule> schedules{parse_schedule("B0.0 F0.0"), parse_schedule("F0.0 B0.0")};
  EXPECT_THROW(PipelineClock(options, schedules), InternalError);
}

TEST(PipelineTimes, ActivationsAreBounds) {
  for (const ScheduleOptions& options : random_schedules()) {
    const ScheduleStats stats = schedule_stats(options, {.forward = 7, .dgrad = 9, .wgrad = 5});
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      EXPECT_LE(stats.peak_activations[static_cast<size_t>(rank)], most_activations(options, rank))
          << describe(options) << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace braid
