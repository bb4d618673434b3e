#include "trace/exposed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "trace/timelines.h"

namespace braid {
namespace {

CommunicationTime of(const RankTimes& times, GroupKind kind) {
  return times.by_group[static_cast<size_t>(kind)];
}

// compute  |0--40|      |60-----100|
// dp             |30--------70|         data, and from 70 to 110 tensor
TEST(AnalyzeTimeline, SplitsCommunicationIntoHiddenAndExposed) {
  Timeline timeline{"cpu", {make_rank(3)}};
  timeline.ranks[0].tasks = {task_at(0, 0, 40), task_at(0, 60, 100),
                             communication_at(1, 30, 70, GroupKind::kData, 64),
                             communication_at(1, 70, 110, GroupKind::kTensor, 16)};
  const RankTimes times = analyze_timeline(timeline).at(0);
  EXPECT_EQ(times.rank, 3);
  EXPECT_EQ(times.step_ns, 110);
  EXPECT_EQ(times.compute_ns, 80);
  EXPECT_EQ(times.communication, (CommunicationTime{2, 80, 80, 30}));
  EXPECT_EQ(of(times, GroupKind::kData), (CommunicationTime{1, 64, 40, 20}));
  EXPECT_EQ(of(times, GroupKind::kTensor), (CommunicationTime{1, 16, 40, 10}));
  EXPECT_EQ(of(times, GroupKind::kData).hidden_ns(), 20);
  EXPECT_EQ(of(times, GroupKind::kExpert), CommunicationTime{});
  EXPECT_EQ(times.by_phase[static_cast<size_t>(Phase::kComm)], times.communication);
  EXPECT_EQ(times.bubble_ns, 0);
  EXPECT_THAT(times.busy_ns, ::testing::ElementsAre(80, 80, 0));
}

TEST(AnalyzeTimeline, CountsCopiesApartAndMeasuresTheBubbleToTheEndOfTheSlowestRank) {
  Timeline timeline{"cpu", {make_rank(0), make_rank(1)}};
  timeline.ranks[0].tasks = {task_at(0, 10, 20), task_at(2, 15, 30)};
  timeline.ranks[1].tasks = {task_at(0, 0, 50)};
  const auto ranks = analyze_timeline(timeline);
  EXPECT_EQ(ranks[0].copy_ns, 10);         // 20 to 30; the rest is under compute
  EXPECT_EQ(ranks[0].bubble_ns, 10 + 20);  // before 10 and after 30
  EXPECT_EQ(ranks[0].communication, CommunicationTime{});
  EXPECT_EQ(ranks[1].bubble_ns, 0);
  EXPECT_EQ(step_time_ns(timeline), 50);
}

TimelineTask named(TimelineTask task, uint32_t name, int32_t layer) {
  task.name = name;
  task.layer = layer;
  return task;
}

// rank 0, compute  |0--40|      |60-----100|
// gathers of layers 1 and 11     |30-50|  |70-90|
// scatter                              |50--70|
// rank 1, a gather  |0-5|
TEST(CommunicationByPlace, AddsUpLayersAndRanksAndPutsTheMostExposedFirst) {
  Timeline timeline{"sim", {make_rank(0), make_rank(1)}};
  for (RankTimeline& rank : timeline.ranks) {
    rank.names = {"linear layers.1.mlp.fc1", "all_gather layers.1.mlp.fc1.input.row",
                  "all_gather layers.11.mlp.fc1.input.row", "reduce_scatter head.logits.sum"};
  }
  const auto gather = [](int64_t start, int64_t end, uint32_t name, int32_t layer) {
    return named(communication_at(1, start, end, GroupKind::kTensor, 8), name, layer);
  };
  timeline.ranks[0].tasks = {
      task_at(0, 0, 40),
      task_at(0, 60, 100),
      gather(30, 50, 1, 1),
      gather(70, 90, 2, 11),
      named(communication_at(1, 50, 70, GroupKind::kTensor, 4), 3, -1),
  };
  timeline.ranks[1].tasks = {gather(0, 5, 1, 1)};
  const std::vector<PlaceCommunication> places = communication_by_place(timeline);
  ASSERT_EQ(places.size(), 2);
  EXPECT_EQ(places[0].name, "all_gather mlp.fc1.input.row");
  EXPECT_EQ(places[0].time, (CommunicationTime{3, 24, 45, 15}));
  EXPECT_EQ(hidden_share(places[0].time), "66.7%");
  EXPECT_EQ(places[1].name, "reduce_scatter head.logits.sum");
  EXPECT_EQ(places[1].time, (CommunicationTime{1, 4, 20, 10}));
  EXPECT_EQ(hidden_share(CommunicationTime{}), "-");
}

TEST(CommunicationByPlace, RefusesWhatAnalyzeTimelineRefuses) {
  Timeline timeline{"sim", {make_rank(0)}};
  timeline.ranks[0].tasks = {communication_at(7, 0, 5, GroupKind::kData, 8)};
  EXPECT_THROW(communication_by_place(timeline), InternalError);
}

TEST(AnalyzeTimeline, TimesAddUpToTheStepOnRandomTimelines) {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    Timeline timeline{"sim", {make_rank(0)}};
    for (uint32_t stream = 0; stream < 3; ++stream) {
      int64_t at = 0;
      for (uint32_t i = random() % 10; i > 0; --i) {
        const int64_t start = at + static_cast<int64_t>(random() % 20);
        at = start + static_cast<int64_t>(random() % 20);
        timeline.ranks[0].tasks.push_back(
            stream == 1 ? communication_at(1, start, at, static_cast<GroupKind>(random() % 6), 1)
                        : task_at(stream, start, at));
      }
    }
    const RankTimes times = analyze_timeline(timeline).at(0);
    EXPECT_EQ(times.compute_ns + times.communication.exposed_ns + times.copy_ns + times.bubble_ns,
              times.step_ns);
    EXPECT_GE(times.communication.hidden_ns(), 0);
    int64_t exposed = 0;  // one stream, so kinds do not overlap
    for (const CommunicationTime& kind : times.by_group) {
      exposed += kind.exposed_ns;
    }
    EXPECT_EQ(exposed, times.communication.exposed_ns);
  }
}

TEST(AnalyzeTimeline, EmptyStepsHaveNoTime) {
  EXPECT_TRUE(analyze_timeline({}).empty());
  EXPECT_EQ(analyze_timeline({"cpu", {make_rank(0)}}).at(0).step_ns, 0);
}

TEST(DescribeTimes, SaysWhereTheStepsOfAllRanksWent) {
  EXPECT_EQ(describe_times({}), "no step");
  Timeline timeline{"cpu", {make_rank(0), make_rank(1)}};
  timeline.ranks[0].step = 7;
  timeline.ranks[0].tasks = {task_at(0, 0, 40), communication_at(1, 30, 70, GroupKind::kData, 64)};
  timeline.ranks[1].tasks = {task_at(0, 0, 100)};
  EXPECT_EQ(describe_times(timeline),
            "step 7, 100 ns: compute 70.0%, exposed communication 15.0%, idle 15.0%");
  timeline.ranks[0].tasks.push_back(task_at(2, 60, 90));
  EXPECT_EQ(describe_times(timeline),
            "step 7, 100 ns: compute 70.0%, exposed communication 15.0%, copies 10.0%, idle 5.0%");
}

TEST(AnalyzeTimeline, RefusesTimelinesThatMakeNoSense) {
  Timeline backwards{"cpu", {make_rank(0)}};
  backwards.ranks[0].tasks = {task_at(0, 5, 4)};
  EXPECT_THROW(analyze_timeline(backwards), InternalError);
  Timeline astray{"cpu", {make_rank(0)}};
  astray.ranks[0].tasks = {task_at(3, 5, 6)};
  EXPECT_THROW(analyze_timeline(astray), InternalError);
}

}  // namespace
}  // namespace braid
