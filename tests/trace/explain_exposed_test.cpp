#include "trace/explain_exposed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "trace/timelines.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TimelineTask compute_at(int64_t start_ns, int64_t end_ns, Phase phase) {
  TimelineTask task = task_at(0, start_ns, end_ns);
  task.phase = phase;
  return task;
}

TimelineTask data_at(int64_t start_ns, int64_t end_ns, uint32_t stream = 1) {
  return communication_at(stream, start_ns, end_ns, GroupKind::kData, 8);
}

TimelineTask pipeline_at(int64_t start_ns, int64_t end_ns) {
  return communication_at(1, start_ns, end_ns, GroupKind::kPipeline, 8);
}

/// The only kind of one rank with these tasks.
ExplainedCommunication explained(std::vector<TimelineTask> tasks) {
  RankTimeline rank = make_rank(0);
  rank.tasks = std::move(tasks);
  const auto all = explain_exposed({"cpu", {rank}});
  EXPECT_EQ(all.size(), 1u);
  return all.at(0);
}

int64_t ns_of(const ExplainedCommunication& one, ExposedReason reason) {
  return one.by_reason_ns.at(static_cast<size_t>(reason));
}

TEST(ExplainExposed, HiddenCommunicationNeedsNoReason) {
  const auto one = explained({compute_at(0, 100, Phase::kForward), data_at(20, 80)});
  EXPECT_EQ(one.time.exposed_ns, 0);
  EXPECT_EQ(std::accumulate(one.by_reason_ns.begin(), one.by_reason_ns.end(), int64_t{0}), 0);
  EXPECT_TRUE(one.waiting.empty());
  EXPECT_EQ(describe_exposed(one), "data: 60 ns, 100.0% hidden");
}

TEST(ExplainExposed, ComputeThatGoesOnAtTheEndWaited) {
  const auto one =
      explained({compute_at(0, 100, Phase::kForward), data_at(50, 200),
                 compute_at(200, 300, Phase::kDgrad), compute_at(310, 400, Phase::kWgrad)});
  EXPECT_EQ(ns_of(one, ExposedReason::kComputeWaits), 100);
  EXPECT_THAT(one.waiting, ElementsAre(WaitingTask{"op", Phase::kDgrad, 1, 100}));
  EXPECT_EQ(describe_exposed(one),
            "data: 150 ns, 33.3% hidden; 100 ns exposed while compute waited for it with nothing "
            "else to run (most before op, dgrad: 100 ns in 1 place)");
}

TEST(ExplainExposed, CommunicationThatGoesOnBesideComputeWasNotWaitedFor) {
  const auto one = explained({compute_at(0, 100, Phase::kForward), data_at(50, 250),
                              compute_at(160, 300, Phase::kForward)});
  EXPECT_EQ(ns_of(one, ExposedReason::kOtherWait), 60);
  EXPECT_TRUE(one.waiting.empty());
  EXPECT_THAT(describe_exposed(one),
              HasSubstr("60 ns exposed while compute waited for something else"));
}

TEST(ExplainExposed, OnTheComputeStreamNothingCanRunBeside) {
  const auto one = explained({compute_at(0, 100, Phase::kForward), data_at(100, 140, 0),
                              compute_at(140, 300, Phase::kForward), data_at(300, 330, 0),
                              compute_at(330, 400, Phase::kForward)});
  EXPECT_EQ(ns_of(one, ExposedReason::kComputeStream), 70);
  EXPECT_EQ(one.waiting.at(0).num_waits, 2);
  EXPECT_THAT(describe_exposed(one),
              HasSubstr("70 ns exposed on the compute stream, where nothing can run beside it "
                        "(most before op, forward: 70 ns in 2 places)"));
}

TEST(ExplainExposed, TheEndsOfTheStepHaveNothingToRunBeside) {
  const auto one = explained({data_at(0, 30), compute_at(30, 100, Phase::kWgrad), data_at(90, 150),
                              compute_at(150, 160, Phase::kOptimizer), data_at(160, 200)});
  EXPECT_EQ(ns_of(one, ExposedReason::kBeforeCompute), 30);
  EXPECT_EQ(ns_of(one, ExposedReason::kBeforeOptimizer), 50);
  EXPECT_EQ(ns_of(one, ExposedReason::kAfterCompute), 40);
  EXPECT_THAT(
      describe_exposed(one),
      HasSubstr("; 50 ns exposed at the end of the backward: the optimizer needs these gradients"
                "; 40 ns exposed after the last compute task: nothing is left to hide it under"
                "; 30 ns exposed at the start of the step: the first compute task waits for it"));
}

TEST(ExplainExposed, APipelineFillsAndDrains) {
  const auto one = explained({pipeline_at(0, 20), compute_at(20, 50, Phase::kForward),
                              pipeline_at(50, 90), compute_at(90, 120, Phase::kDgrad),
                              pipeline_at(120, 130), compute_at(130, 140, Phase::kForward),
                              pipeline_at(140, 170), compute_at(170, 200, Phase::kDgrad)});
  EXPECT_EQ(ns_of(one, ExposedReason::kWarmup), 60);
  EXPECT_EQ(ns_of(one, ExposedReason::kComputeWaits), 10);
  EXPECT_EQ(ns_of(one, ExposedReason::kCooldown), 30);
}

TEST(ExplainExposed, ARankWithoutComputeHasNothingToRunBeside) {
  const auto one = explained({data_at(10, 40)});
  EXPECT_EQ(ns_of(one, ExposedReason::kAfterCompute), 30);
}

TEST(ExplainExposed, KindsAreApartAndRanksTogether) {
  RankTimeline rank = make_rank(0);
  rank.tasks = {compute_at(0, 100, Phase::kForward), data_at(100, 150),
                communication_at(2, 90, 120, GroupKind::kTensor, 4),
                compute_at(150, 160, Phase::kForward)};
  const auto all = explain_exposed({"sim", {rank, rank}});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kind, GroupKind::kData);
  EXPECT_EQ(all[0].time, (CommunicationTime{2, 16, 100, 100}));
  EXPECT_EQ(all[1].kind, GroupKind::kTensor);
  EXPECT_EQ(all[1].time, (CommunicationTime{2, 8, 60, 40}));
}

TEST(ExplainExposed, TasksWithoutDurationSaySo) {
  EXPECT_EQ(describe_exposed(explained({data_at(5, 5)})), "data: 0 ns");
}

/// On any timeline the reasons add up to what the analysis calls exposed.
TEST(ExplainExposed, ReasonsAddUp) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    RankTimeline rank = make_rank(0);
    std::array<int64_t, 3> now_ns{};
    for (int i = 0; i < 60; ++i) {
      const uint32_t stream = random() % 3;
      int64_t& now = now_ns.at(stream);
      const int64_t start_ns = now + random() % 20;
      now = start_ns + random() % 30;
      if (random() % 2 == 0) {
        rank.tasks.push_back(communication_at(
            stream, start_ns, now, static_cast<GroupKind>(random() % kNumGroupKinds), 1));
      } else {
        TimelineTask task = task_at(stream, start_ns, now);
        task.phase = static_cast<Phase>(random() % 4);
        rank.tasks.push_back(task);
      }
    }
    const Timeline timeline{"cpu", {rank}};
    const RankTimes times = analyze_timeline(timeline).at(0);
    for (const ExplainedCommunication& one : explain_exposed(timeline)) {
      EXPECT_EQ(one.time, times.by_group.at(static_cast<size_t>(one.kind)));
      EXPECT_EQ(std::accumulate(one.by_reason_ns.begin(), one.by_reason_ns.end(), int64_t{0}),
                one.time.exposed_ns)
          << "round " << round << ": " << describe_exposed(one);
    }
  }
}

}  // namespace
}  // namespace braid
