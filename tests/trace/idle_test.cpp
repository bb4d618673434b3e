#include "trace/idle.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TimelineTask compute(Phase phase, int64_t start_ns, int64_t end_ns) {
  return {.phase = phase, .start_ns = start_ns, .end_ns = end_ns};
}

TimelineTask communication(GroupKind group, int64_t start_ns, int64_t end_ns) {
  return {.stream = 1,
          .phase = Phase::kComm,
          .start_ns = start_ns,
          .end_ns = end_ns,
          .group = group,
          .communication = true};
}

RankTimeline timeline_of(std::vector<TimelineTask> tasks) {
  return {.rank = 0,
          .streams = {{"compute"}, {"comm", StreamKind::kComm}},
          .names = {"x"},
          .tasks = std::move(tasks)};
}

TEST(Idle, CountsGapsForWhatEndsThemAndByPhase) {
  const RankTimeline rank = timeline_of(
      {compute(Phase::kDgrad, 0, 0), communication(GroupKind::kPipeline, 10, 20),      // warm-up
       compute(Phase::kForward, 20, 30), communication(GroupKind::kPipeline, 35, 40),  // warm-up
       compute(Phase::kDgrad, 40, 50), compute(Phase::kForward, 53, 60),               // steady
       communication(GroupKind::kPipeline, 70, 75), compute(Phase::kWgrad, 75, 80),
       communication(GroupKind::kWorld, 90, 95)});
  const IdleTimes idle = analyze_idle(rank, 100);
  EXPECT_EQ(idle.before_communication_ns[static_cast<size_t>(GroupKind::kPipeline)], 10 + 5 + 10);
  EXPECT_EQ(idle.before_communication_ns[static_cast<size_t>(GroupKind::kWorld)], 10);
  EXPECT_EQ(idle.before_compute_ns, 3);
  EXPECT_EQ(idle.at_end_ns, 5);
  EXPECT_EQ(idle.warmup_ns, 15);
  EXPECT_EQ(idle.steady_ns, 3);
  EXPECT_EQ(idle.cooldown_ns, 10 + 10 + 5);
  EXPECT_EQ(idle.total_ns(), analyze_rank(rank, 100).bubble_ns);
}

TEST(Idle, WhatRunsBesideIsNoGap) {
  const RankTimeline rank =
      timeline_of({compute(Phase::kForward, 0, 10), communication(GroupKind::kData, 5, 30),
                   compute(Phase::kDgrad, 20, 25), compute(Phase::kDgrad, 30, 40),
                   compute(Phase::kDgrad, 7, 7)});
  EXPECT_EQ(analyze_idle(rank, 40), IdleTimes());
}

TEST(Idle, ARankWithoutTasksIsIdleAllTheTime) {
  const IdleTimes idle = analyze_idle(timeline_of({}), 7);
  EXPECT_EQ(idle.at_end_ns, 7);
  EXPECT_EQ(idle.total_ns(), 7);
}

}  // namespace
}  // namespace braid
