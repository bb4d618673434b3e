#include "backends/device_activity.h"

#include <gmock/gmock.h>

#include <array>
#include <random>

#include "base/errors.h"
#include "base/expect_error.h"
#include "support/random_program.h"
#include "support/step_program.h"
#include "trace/exposed.h"
#include "trace/peer_waits.h"
#include "trace/rank_clocks.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

/// fill and copy on compute, add on comm, which waits for both, and a copy that waits for it.
struct TwoStreams {
  Program program;

  TwoStreams() {
    StepProgram builder;
    const StreamId compute = builder.stream("compute");
    const StreamId comm = builder.stream("comm", StreamKind::kComm);
    const BufferId a = builder.step("a", 8);
    const BufferId b = builder.step("b", 8);
    const BufferId out = builder.persistent("out", 8);
    builder.fill(compute, a, 1);
    builder.copy(compute, a, b);
    builder.add(comm, a, b, out);
    builder.copy(compute, out, b);
    program = builder.finish();
  }
};

DeviceActivity node_ran(uint64_t node, int64_t start_ns, int64_t end_ns, uint32_t name = 0) {
  return {.name = name, .start_ns = start_ns, .end_ns = end_ns, .graph_node = node};
}

DeviceActivity call_ran(uint32_t call, int64_t start_ns, int64_t end_ns, uint32_t name = 0) {
  return {.name = name, .start_ns = start_ns, .end_ns = end_ns, .call = call};
}

std::vector<std::pair<int64_t, int64_t>> times_of(const RankTimeline& timeline) {
  std::vector<std::pair<int64_t, int64_t>> times;
  for (const TimelineTask& task : timeline.tasks) {
    times.emplace_back(task.start_ns, task.end_ns);
  }
  return times;
}

TEST(DeviceActivity, TimesOfAGraphsNodesBecomeTimesOfTheirTasks) {
  const ActivityLog log{.names = {"k", "l"},
                        .activities = {node_ran(42, 1300, 1400, 1), node_ran(40, 1000, 1100),
                                       node_ran(43, 1410, 1500), node_ran(41, 1100, 1290)}};
  const TaskOfNode nodes{{40, 0}, {41, 1}, {42, 2}, {43, 3}};
  const RankTimeline timeline = timeline_of_activities(TwoStreams().program, log, nodes);
  // Streams come one after the other: fill, copy, copy on compute, add on comm.
  EXPECT_THAT(times_of(timeline),
              ElementsAre(Pair(0, 100), Pair(100, 290), Pair(410, 500), Pair(300, 400)));
  EXPECT_EQ(timeline.names[timeline.tasks[3].name], "add");
  EXPECT_THAT(timeline.kernels,
              ElementsAre(TimelineKernel{0, 0, 0, 100}, TimelineKernel{1, 0, 100, 290},
                          TimelineKernel{3, 1, 300, 400}, TimelineKernel{2, 0, 410, 500}));
  EXPECT_THAT(timeline.kernel_names, ElementsAre("k", "l"));
  EXPECT_EQ(timeline.remark, "");
}

TEST(DeviceActivity, TimesOfCallsBecomeTimesOfTheirTasks) {
  const ActivityLog log{.names = {"k"},
                        .activities = {call_ran(7, 50, 60), call_ran(9, 70, 90),
                                       call_ran(12, 95, 99), call_ran(15, 100, 120)},
                        .calls = {{7, 0}, {8, 0}, {9, 1}, {12, 2}, {15, 3}}};
  const RankTimeline timeline = timeline_of_activities(TwoStreams().program, log, {});
  EXPECT_THAT(times_of(timeline),
              ElementsAre(Pair(0, 10), Pair(20, 40), Pair(50, 70), Pair(45, 49)));
  EXPECT_EQ(timeline.remark, "");
}

TEST(DeviceActivity, TakesTimesOfTheHostForTasksThatLeaveNoRecord) {
  const TaskOfNode nodes{{40, 0}, {41, 1}, {43, 3}};
  ActivityLog log{.names = {"k"},
                  .activities = {node_ran(40, 1000, 1100), node_ran(41, 1100, 1290),
                                 node_ran(43, 1410, 1500), call_ran(7, 1520, 1530)},
                  .calls = {{9, 0}}};
  add_host_timed(std::array{HostTimedTask{2, 1300, 1405}}, "host", log);
  const RankTimeline timeline = timeline_of_activities(TwoStreams().program, log, nodes);
  EXPECT_THAT(times_of(timeline),
              ElementsAre(Pair(0, 100), Pair(100, 290), Pair(410, 500), Pair(300, 405)));
  EXPECT_THAT(timeline.kernel_names, ElementsAre("k", "host"));
  EXPECT_EQ(timeline.kernels[2], (TimelineKernel{3, 1, 300, 405}));
  EXPECT_THAT(timeline.remark, HasSubstr("work of no task: 1 kernel"));  // as without
}

TEST(DeviceActivity, ATaskRunsFromItsFirstToItsLastActivity) {
  const ActivityLog log{.names = {"k"},
                        .activities = {node_ran(1, 100, 110), node_ran(2, 150, 180),
                                       node_ran(3, 120, 190), node_ran(4, 200, 210)}};
  const TaskOfNode nodes{{1, 0}, {2, 1}, {3, 1}, {4, 2}};
  const RankTimeline timeline = timeline_of_activities(TwoStreams().program, log, nodes);
  EXPECT_EQ(times_of(timeline)[1], std::pair(int64_t{20}, int64_t{90}));
  EXPECT_THAT(timeline.kernels,
              ElementsAre(TimelineKernel{0, 0, 0, 10}, TimelineKernel{1, 0, 20, 90},
                          TimelineKernel{1, 0, 50, 80}, TimelineKernel{3, 0, 100, 110}));
}

TEST(DeviceActivity, ATaskWithoutWorkTakesNoTimeWhenItsWaitsAreOver) {
  // The add on the other stream does nothing; the last copy waits for it.
  const ActivityLog log{.names = {"k"}, .activities = {node_ran(1, 10, 30), node_ran(2, 30, 70)}};
  const RankTimeline timeline = timeline_of_activities(TwoStreams().program, log, {{1, 0}, {2, 1}});
  EXPECT_THAT(times_of(timeline),
              ElementsAre(Pair(0, 20), Pair(20, 60), Pair(60, 60), Pair(60, 60)));
  EXPECT_EQ(timeline.remark, "");
}

TEST(DeviceActivity, AStepWithoutAnyRecordHasAllTasks) {
  const RankTimeline timeline = timeline_of_activities(TwoStreams().program, {}, {});
  EXPECT_THAT(times_of(timeline), ElementsAre(Pair(0, 0), Pair(0, 0), Pair(0, 0), Pair(0, 0)));
  EXPECT_TRUE(timeline.kernels.empty());
}

TEST(DeviceActivity, WorkOfNoTaskIsShownAndCounted) {
  const ActivityLog log{
      .names = {"k", "fill"},
      .activities = {call_ran(3, 100, 300, 1), node_ran(99, 350, 360), node_ran(1, 320, 340)},
      .calls = {{4, 0}}};
  const RankTimeline timeline = timeline_of_activities(TwoStreams().program, log, {{1, 0}});
  EXPECT_THAT(timeline.kernels, ElementsAre(TimelineKernel{TimelineKernel::kNoTask, 1, 0, 200},
                                            TimelineKernel{0, 0, 220, 240},
                                            TimelineKernel{TimelineKernel::kNoTask, 0, 250, 260}));
  EXPECT_EQ(timeline.remark, "work of no task: 2 kernels (0.2 us)");
}

TEST(DeviceActivity, SaysWhatIsMissing) {
  const ActivityLog log{.names = {"k"},
                        .activities = {node_ran(1, 0, 0), node_ran(2, 90, 80), node_ran(3, 5, 6)},
                        .num_lost = 7};
  const RankTimeline timeline =
      timeline_of_activities(TwoStreams().program, log, {{1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 3}});
  EXPECT_EQ(timeline.remark,
            "no record of 2 of 5 graph nodes; 7 records lost by the profiler; 2 records without "
            "times");
  EXPECT_EQ(timeline.kernels.size(), 1u);
}

TEST(DeviceActivity, StartsAreMovedToWhereTheOrderAllowsThem) {
  // The copy seems to start 2 ns before the fill has ended, the add 5 ns before the copy has.
  const ActivityLog log{.names = {"k"},
                        .activities = {node_ran(1, 100, 130), node_ran(2, 128, 150),
                                       node_ran(3, 145, 149), node_ran(4, 200, 210)}};
  const RankTimeline timeline =
      timeline_of_activities(TwoStreams().program, log, {{1, 0}, {2, 1}, {3, 2}, {4, 3}});
  EXPECT_THAT(times_of(timeline),
              ElementsAre(Pair(0, 30), Pair(30, 50), Pair(100, 110), Pair(50, 50)));
  EXPECT_EQ(timeline.kernels[1].start_ns, 28);
  EXPECT_EQ(timeline.remark, "2 starts moved by up to 5 ns to after what they wait for");
}

TEST(DeviceActivity, RefusesTasksThatTheProgramDoesNotHave) {
  const ActivityLog log{.names = {"k"}, .activities = {node_ran(1, 5, 6)}};
  EXPECT_THAT(message_of<InternalError>([&] {
                timeline_of_activities(TwoStreams().program, log, {{1, 4}});
              }),
              HasSubstr("an activity of task 4 of 4"));
}

TEST(DeviceActivity, TasksOfCapturedNodesFollowTheirClones) {
  const NodeOfTask captured[] = {{1, 10}, {2, 10}, {3, 11}, {4, 12}};
  EXPECT_THAT(tasks_of_nodes(captured, {}),
              UnorderedElementsAre(Pair(1, 10), Pair(2, 10), Pair(3, 11), Pair(4, 12)));
  // 4 is not cloned; 101 is cloned again; 50 is of another graph.
  const NodeClone clones[] = {{1, 101}, {50, 150}, {2, 102}, {3, 103}, {101, 201}};
  EXPECT_THAT(tasks_of_nodes(captured, clones),
              UnorderedElementsAre(Pair(201, 10), Pair(102, 10), Pair(103, 11), Pair(4, 12)));
}

TEST(DeviceActivity, ACloneOfTheSameIdKeepsItsTask) {
  const NodeOfTask captured[] = {{1, 10}};
  const NodeClone clones[] = {{1, 1}};
  EXPECT_THAT(tasks_of_nodes(captured, clones), UnorderedElementsAre(Pair(1, 10)));
}

// Whatever a profiler says, the timeline keeps the order of streams and events.
TEST(DeviceActivity, RandomRecordsGiveATimelineInOrder) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Program program =
        insert_events(random_program(seed, {.num_tasks = 60, .num_streams = 3})).program;
    ActivityLog log{.names = {"k"}};
    TaskOfNode nodes;
    uint64_t node = 0;
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      for (uint32_t i = random() % 4; i > 0; --i) {
        nodes.emplace(++node, task);
        const int64_t start_ns = 1 + static_cast<int64_t>(random() % 5000);
        log.activities.push_back(
            node_ran(node, start_ns, start_ns + static_cast<int64_t>(random() % 300)));
      }
    }
    const RankTimeline timeline = timeline_of_activities(program, log, nodes);
    ASSERT_EQ(timeline.tasks.size(), program.tasks.size());
    std::vector<int64_t> end_ns(program.streams.size());
    for (const TimelineTask& task : timeline.tasks) {
      EXPECT_LE(end_ns[task.stream], task.start_ns);
      EXPECT_LE(task.start_ns, task.end_ns);
      end_ns[task.stream] = task.end_ns;
    }
    EXPECT_EQ(timeline.kernels.size(), log.activities.size());
    EXPECT_TRUE(
        std::is_sorted(timeline.kernels.begin(), timeline.kernels.end(),
                       [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; }));
  }
}

// ---- several devices ----

std::vector<size_t> owners_of(std::span<const ActivityOwner> owners, int device, uint64_t node) {
  std::vector<size_t> found;
  for_each_owner(owners, device, node, [&](size_t owner) { found.push_back(owner); });
  return found;
}

TEST(DeviceActivity, BelongsToTheRankOfItsDeviceOrOfItsGraph) {
  const TaskOfNode first{{10, 0}, {11, 1}};
  const TaskOfNode second{{20, 0}};
  const ActivityOwner owners[] = {{.device = 0, .nodes = &first}, {.device = 3, .nodes = &second}};
  EXPECT_THAT(owners_of(owners, 0, 10), ElementsAre(0));
  EXPECT_THAT(owners_of(owners, 3, 20), ElementsAre(1));
  EXPECT_THAT(owners_of(owners, 3, 11), ElementsAre(0));  // a copy to the other device
  EXPECT_THAT(owners_of(owners, 3, 99), ElementsAre(1));  // nobody's: seen on its device
  EXPECT_THAT(owners_of(owners, 3, 0), ElementsAre(1));   // from no graph
  EXPECT_TRUE(owners_of(owners, 7, 99).empty());
}

TEST(DeviceActivity, RanksOnOneDeviceSeeEachOther) {
  const TaskOfNode first{{10, 0}};
  const ActivityOwner owners[] = {{.device = 0, .nodes = &first}, {.device = 0}};
  EXPECT_THAT(owners_of(owners, 0, 10), ElementsAre(0, 1));
}

/// A rank of two: a fill, which the sum of both needs, beside another fill.
Program rank_of_two(int rank) {
  ProgramBuilder builder("step", rank, 2);
  const StreamId compute = builder.add_stream({.name = "compute"});
  const StreamId comm = builder.add_stream({.name = "comm.data", .kind = StreamKind::kComm});
  builder.add_group({"data", GroupKind::kData, {0, 1}});
  const auto buffer = [&](const char* name) {
    return builder.whole(builder.add_buffer(
        {.name = name, .dtype = DType::kF32, .shape = {8}, .lifetime = Lifetime::kPersistent}));
  };
  const OperandSpec written{DType::kF32, Access::kWrite, {8}};
  const OpSpec fill{"fill", {{"value", 1.0}}, {written}};
  const BufferRange sum = buffer("sum");
  builder.add_task(fill, std::array{sum}, compute, {});
  builder.add_task(
      {"all_reduce", {{"group", int64_t{0}}}, {{DType::kF32, Access::kReadWrite, {8}}}},
      std::array{sum}, comm, {.phase = Phase::kComm});
  builder.add_task(fill, std::array{buffer("other")}, compute, {});
  return insert_events(builder.take()).program;
}

// On the clock that CUPTI makes of those of both devices:
//   GPU 0  compute |1000-1100|1100-1300|         GPU 1  compute   |1250-1400|1400-1500|
//          nccl              |1100----------1600|       nccl                |1400--1600|
TEST(DeviceActivity, TwoDevicesAreOnOneClockAndTransfersBeginWithTheLastRank) {
  const ActivityLog logs[] = {{.names = {"fill", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
                               .activities = {node_ran(10, 1000, 1100), node_ran(11, 1100, 1600, 1),
                                              node_ran(12, 1100, 1300)}},
                              {.names = {"fill", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
                               .activities = {node_ran(20, 1250, 1400), node_ran(22, 1400, 1500),
                                              node_ran(21, 1400, 1600, 1)}}};
  const TaskOfNode nodes[] = {{{10, 0}, {11, 1}, {12, 2}}, {{20, 0}, {21, 1}, {22, 2}}};
  Timeline timeline{"cuda, CUPTI", {}};
  for (int rank = 0; rank < 2; ++rank) {
    timeline.ranks.push_back(timeline_of_activities(rank_of_two(rank), logs[rank], nodes[rank]));
    EXPECT_EQ(timeline.ranks.back().remark, "");
  }
  EXPECT_EQ(timeline.ranks[1].clock_origin_ns, 1250);
  EXPECT_EQ(put_on_one_clock(timeline), RankClocks{});
  find_peer_waits(timeline);
  EXPECT_THAT(times_of(timeline.ranks[0]),
              ElementsAre(Pair(0, 100), Pair(100, 300), Pair(100, 600)));
  EXPECT_THAT(times_of(timeline.ranks[1]),
              ElementsAre(Pair(250, 400), Pair(400, 500), Pair(400, 600)));
  EXPECT_EQ(timeline.ranks[0].tasks[2].wait_ns, 300);
  EXPECT_EQ(timeline.ranks[1].tasks[2].wait_ns, 0);
  const auto times = analyze_timeline(timeline);
  EXPECT_EQ(times[0].communication, (CommunicationTime{1, 32, 500, 300, 100}));
  EXPECT_EQ(times[1].communication, (CommunicationTime{1, 32, 200, 100, 0}));
}

}  // namespace
}  // namespace braid
