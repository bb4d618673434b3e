#include "parallel/schedule_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Kind = ScheduleKind;

constexpr JobCosts kUnit;
constexpr JobCosts kCosts[] = {kUnit,
                               {.forward = 3, .dgrad = 4, .wgrad = 2},
                               {.forward = 10, .dgrad = 12, .wgrad = 8},
                               {.forward = 5, .dgrad = 7, .wgrad = 4}};

/// Time in which a rank computes.
int64_t work_of(const ScheduleOptions& options, const JobCosts& costs) {
  return options.num_microbatches * options.virtual_stages *
         (costs.forward + costs.dgrad + costs.wgrad);
}

int64_t bubble_of(const ScheduleOptions& options, const JobCosts& costs) {
  return schedule_stats(options, costs).total_time - work_of(options, costs);
}

int64_t most(const std::vector<int64_t>& values) {
  return *std::ranges::max_element(values);
}

TEST(ScheduleStats, TimesOfAllJobs) {
  const ScheduleOptions options{.num_ranks = 2, .num_microbatches = 2};
  const JobCosts costs{.forward = 2, .dgrad = 1, .wgrad = 2};
  const auto slots = time_schedules(options, make_schedules(options), costs);
  const auto slot = [](JobKind kind, int32_t microbatch, int64_t begin, int64_t end) {
    return JobSlot{{kind, microbatch, 0}, begin, end};
  };
  using Slots = std::vector<JobSlot>;
  EXPECT_EQ(slots[0],
            (Slots{slot(JobKind::kForward, 0, 0, 2), slot(JobKind::kForward, 1, 2, 4),
                   slot(JobKind::kBackward, 0, 7, 10), slot(JobKind::kBackward, 1, 12, 15)}));
  EXPECT_EQ(slots[1],
            (Slots{slot(JobKind::kForward, 0, 2, 4), slot(JobKind::kBackward, 0, 4, 7),
                   slot(JobKind::kForward, 1, 7, 9), slot(JobKind::kBackward, 1, 9, 12)}));
  const ScheduleStats stats = schedule_stats(slots);
  EXPECT_EQ(stats.total_time, 15);
  EXPECT_EQ(stats.idle_time, (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(stats.inner_idle_time, (std::vector<int64_t>{5, 0}));
  EXPECT_DOUBLE_EQ(stats.bubble_fraction, 10.0 / 30.0);
  EXPECT_EQ(stats.peak_activations, (std::vector<int64_t>{2, 1}));
}

// Bubble (P - 1)(F + B); live activations of 1f1b min(P - r, M), of GPipe M.
TEST(ScheduleStats, GpipeAnd1f1b) {
  for (const Kind kind : {Kind::kGpipe, Kind::kOneForwardOneBackward}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (const int64_t microbatches : {1, 2, 3, 7, 8, 9, 20}) {
        const ScheduleOptions options{
            .kind = kind, .num_ranks = ranks, .num_microbatches = microbatches};
        for (const JobCosts& costs : kCosts) {
          const ScheduleStats stats = schedule_stats(options, costs);
          const int64_t bubble = (ranks - 1) * (costs.forward + costs.dgrad + costs.wgrad);
          ASSERT_EQ(stats.total_time - work_of(options, costs), bubble);
          ASSERT_THAT(stats.idle_time, Each(bubble));
          // The share of all time: (P - 1) / (M + P - 1).
          ASSERT_DOUBLE_EQ(
              stats.bubble_fraction,
              static_cast<double>(ranks - 1) / static_cast<double>(microbatches + ranks - 1));
          for (int rank = 0; rank < ranks; ++rank) {
            ASSERT_EQ(stats.peak_activations[static_cast<size_t>(rank)],
                      kind == Kind::kGpipe ? microbatches
                                           : std::min<int64_t>(ranks - rank, microbatches));
          }
        }
      }
    }
  }
}

// Bubble (P - 1)(F + B), F and B of one virtual stage, where G divides M; live activations W + 1.
TEST(ScheduleStats, Interleaved) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int stages = 2; stages <= 5; ++stages) {
      for (int64_t group_size = ranks; group_size <= ranks + 3; ++group_size) {
        for (const int64_t groups : {1, 2, 5}) {
          const ScheduleOptions options{.kind = Kind::kInterleaved,
                                        .num_ranks = ranks,
                                        .virtual_stages = stages,
                                        .num_microbatches = groups * group_size,
                                        .group_size = group_size};
          for (const JobCosts& costs : kCosts) {
            ASSERT_EQ(bubble_of(options, costs),
                      (ranks - 1) * (costs.forward + costs.dgrad + costs.wgrad));
          }
          const ScheduleStats stats = schedule_stats(options);
          for (int rank = 0; rank < ranks; ++rank) {
            const int64_t warmup = 2 * (ranks - rank - 1) + (stages - 1) * group_size;
            ASSERT_EQ(stats.peak_activations[static_cast<size_t>(rank)],
                      std::min<int64_t>(warmup + 1, options.num_microbatches * stages));
          }
        }
      }
    }
  }
}

// In units of a whole rank's activations of one microbatch: P + (P - 1) / V on the first rank.
TEST(ScheduleStats, InterleavedHoldsMoreThan1f1b) {
  const ScheduleOptions options{
      .kind = Kind::kInterleaved, .num_ranks = 8, .virtual_stages = 4, .num_microbatches = 32};
  EXPECT_EQ(schedule_stats(options).peak_activations[0], 8 * 4 + 7);
}

TEST(ScheduleStats, InterleavedWithAShortLastGroupStaysNear) {
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int64_t group_size = ranks + 1; group_size <= 2 * ranks; ++group_size) {
      const ScheduleOptions options{.kind = Kind::kInterleaved,
                                    .num_ranks = ranks,
                                    .virtual_stages = 3,
                                    .num_microbatches = 2 * group_size + ranks,
                                    .group_size = group_size};
      const int64_t bubble = bubble_of(options, kUnit);
      EXPECT_GE(bubble, (ranks - 1) * 3);
      // Each virtual stage of the last group may wait for the longer groups before it.
      EXPECT_LE(bubble, (ranks - 1) * 3 + 3 * options.virtual_stages * (group_size - ranks));
    }
  }
}

TEST(ScheduleStats, OneMoreWarmupForwardHoldsOneMore) {
  ScheduleOptions options{
      .kind = Kind::kInterleaved, .num_ranks = 4, .virtual_stages = 2, .num_microbatches = 8};
  const ScheduleStats plain = schedule_stats(options);
  options.pairs = JobPairs::kForwardBackward;
  const ScheduleStats extra = schedule_stats(options);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(extra.peak_activations[rank], plain.peak_activations[rank] + 1);
  }
}

// Bubble (P - 1)(F + D - W) at the memory of 1f1b's first rank (Qi et al., ICLR 2024, table 2).
TEST(ScheduleStats, ZeroBubbleH1) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const int64_t microbatches : {ranks, ranks + 1, 2 * ranks, 3 * ranks + 1}) {
      const ScheduleOptions options{
          .kind = Kind::kZbH1, .num_ranks = ranks, .num_microbatches = microbatches};
      for (const JobCosts& costs : kCosts) {
        ASSERT_EQ(bubble_of(options, costs),
                  (ranks - 1) * (costs.forward + costs.dgrad - costs.wgrad))
            << ranks << " ranks, " << microbatches << " microbatches";
      }
      ASSERT_THAT(schedule_stats(options).peak_activations, Each(int64_t{ranks}));
    }
  }
}

TEST(ScheduleStats, ZeroBubbleH1WithFewMicrobatchesIsNoWorseThan1f1b) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    for (int64_t microbatches = 1; microbatches < ranks; ++microbatches) {
      ScheduleOptions options{.num_ranks = ranks, .num_microbatches = microbatches};
      const int64_t plain = bubble_of(options, kUnit);
      options.kind = Kind::kZbH1;
      ASSERT_LT(bubble_of(options, kUnit), plain);
      ASSERT_EQ(most(schedule_stats(options).peak_activations), microbatches);
    }
  }
}

// No idle time between the first and the last job of any rank if F = D = W; the activations of P
// microbatches (2 P halves) on every rank (Qi et al., Controllable Memory, 2024).
TEST(ScheduleStats, ZeroBubbleV) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const int64_t microbatches : {2 * ranks - 1, 2 * ranks, 2 * ranks + 1, 5 * ranks + 2}) {
      const ScheduleOptions options{.kind = Kind::kZbV,
                                    .num_ranks = ranks,
                                    .virtual_stages = 2,
                                    .num_microbatches = microbatches};
      const ScheduleStats stats = schedule_stats(options);
      ASSERT_THAT(stats.inner_idle_time, Each(0));
      // The last rank starts P - 1 units later.
      ASSERT_EQ(stats.total_time - work_of(options, kUnit), ranks - 1);
      ASSERT_THAT(stats.peak_activations, Each(2 * int64_t{ranks}));
    }
  }
}

TEST(ScheduleStats, ZeroBubbleVWithFewMicrobatches) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    for (int64_t microbatches = 1; microbatches < 2 * ranks - 1; ++microbatches) {
      const ScheduleOptions options{.kind = Kind::kZbV,
                                    .num_ranks = ranks,
                                    .virtual_stages = 2,
                                    .num_microbatches = microbatches};
      const ScheduleStats stats = schedule_stats(options);
      ASSERT_LE(most(stats.peak_activations), std::min<int64_t>(2 * microbatches, 2 * ranks));
      if (microbatches >= ranks) {
        ASSERT_EQ(stats.total_time - work_of(options, kUnit), ranks - 1);
        ASSERT_EQ(most(stats.inner_idle_time), 2 * ranks - 1 - microbatches);
      } else {
        ASSERT_LT(stats.total_time - work_of(options, kUnit), 4 * (ranks - 1));
      }
    }
  }
}

// Bubble (P - 1)(F&B + B - 3W), where F&B is the time of an overlapped pair; activations of 2P + 1
// virtual stages.
TEST(ScheduleStats, DualpipeV) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t microbatches : {2 * ranks, 2 * ranks + 1, 5 * ranks}) {
      const ScheduleOptions options{.kind = Kind::kDualpipeV,
                                    .num_ranks = ranks,
                                    .virtual_stages = 2,
                                    .num_microbatches = microbatches};
      for (const JobCosts& costs : {JobCosts{.pair = 3}, JobCosts{.pair = 2}, JobCosts{3, 4, 2, 8},
                                    JobCosts{10, 12, 8, 26}, JobCosts{10, 10, 10, 25}}) {
        const ScheduleStats stats = schedule_stats(options, costs);
        ASSERT_EQ(most(stats.idle_time),
                  (ranks - 1) * (costs.pair + costs.dgrad + costs.wgrad - 3 * costs.wgrad))
            << ranks << " ranks, " << microbatches << " microbatches";
      }
      ASSERT_THAT(schedule_stats(options).peak_activations, Each(2 * int64_t{ranks} + 1));
      // Pairs one after the other and F = D = W: a third of the bubble of 1f1b.
      ASSERT_EQ(bubble_of(options, kUnit), ranks - 1);
    }
  }
}

TEST(ScheduleStats, SchedulesOfAUsefulSizeAreTimed) {
  const ScheduleOptions options{
      .kind = Kind::kZbV, .num_ranks = 64, .virtual_stages = 2, .num_microbatches = 1024};
  EXPECT_EQ(bubble_of(options, kUnit), 63);
}

std::string fault_of(const ScheduleOptions& options, const std::vector<std::string>& schedules) {
  std::vector<Schedule> parsed;
  for (const std::string& text : schedules) {
    parsed.push_back(parse_schedule(text));
  }
  return message_of<InternalError>([&] { time_schedules(options, parsed); });
}

TEST(ScheduleStats, FindsWrongSchedules) {
  const ScheduleOptions one;
  EXPECT_EQ(fault_of(one, {"B0.0 F0.0"}), "rank 0: job B0.0 waits for ever");
  EXPECT_EQ(fault_of(one, {"F0.0 W0.0 D0.0"}), "rank 0: job W0.0 waits for ever");
  EXPECT_EQ(fault_of(one, {"F0.0 F0.0 B0.0"}), "rank 0: job F0.0 occurs twice");
  EXPECT_EQ(fault_of(one, {"F0.0 D0.0 B0.0"}), "rank 0: job B0.0 occurs twice");
  EXPECT_EQ(fault_of(one, {"F0.0 B0.0 W0.0"}), "rank 0: job W0.0 occurs twice");
  EXPECT_THAT(fault_of(one, {"F0.0 D0.0"}),
              HasSubstr("microbatch 0 does not pass virtual stage 0"));
  EXPECT_THAT(fault_of(one, {""}), HasSubstr("microbatch 0 does not pass virtual stage 0"));
  EXPECT_THAT(fault_of(one, {"F1.0 B1.0"}), HasSubstr("job F1.0 has no microbatch of 1"));
  EXPECT_THAT(fault_of(one, {"F0.1 B0.1"}), HasSubstr("there is no virtual stage 1 on rank 0"));
  EXPECT_THAT(fault_of(one, {"F0.0 B0.0", ""}), HasSubstr("schedules of 2 ranks"));
}

TEST(ScheduleStats, FindsRanksThatWaitForEachOther) {
  const ScheduleOptions options{.num_ranks = 2, .num_microbatches = 2};
  EXPECT_EQ(fault_of(options, {"F1.0 B1.0 F0.0 B0.0", "F0.0 B0.0 F1.0 B1.0"}),
            "rank 0: job B1.0 waits for ever");
}

}  // namespace
}  // namespace braid
