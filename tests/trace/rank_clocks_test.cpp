#include "trace/rank_clocks.h"

#include <gmock/gmock.h>

#include "trace/timelines.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// Two calls of all ranks, which the op `op` makes, and a kernel for each.
RankTimeline rank_of(int rank, const TimelineSequence& sequence, const std::string& op,
                     std::vector<std::pair<int64_t, int64_t>> calls, int64_t origin_ns) {
  RankTimeline timeline = make_rank(rank);
  timeline.sequences = {sequence};
  timeline.ops = {{.name = op}};
  timeline.kernel_names = {"ncclDevKernel_AllReduce_Sum_f32_RING_LL"};
  for (const auto& [start_ns, end_ns] : calls) {
    TimelineTask task = communication_at(1, start_ns, end_ns, GroupKind::kData, 8);
    task.sequence = 0;
    task.call = static_cast<uint32_t>(timeline.tasks.size());
    timeline.kernels.push_back({task.call, 0, start_ns, end_ns});
    timeline.tasks.push_back(task);
  }
  timeline.clock_origin_ns = origin_ns;
  return timeline;
}

const TimelineSequence kPair{.name = "data of ranks 0, 1", .ranks = {0, 1}};
const TimelineSequence kMessages{
    .name = "pipeline messages of ranks 0, 1, channel 0", .ranks = {0, 1}, .messages = true};

std::vector<std::pair<int64_t, int64_t>> times_of(const RankTimeline& rank) {
  std::vector<std::pair<int64_t, int64_t>> times;
  for (size_t i = 0; i < rank.tasks.size(); ++i) {
    times.emplace_back(rank.tasks[i].start_ns, rank.tasks[i].end_ns);
    EXPECT_EQ(rank.kernels[i].start_ns, rank.tasks[i].start_ns);  // kernels move with their tasks
    EXPECT_EQ(rank.kernels[i].end_ns, rank.tasks[i].end_ns);
  }
  return times;
}

TEST(RankClocks, RanksStartWhenTheirHostsSay) {
  Timeline timeline{"cuda, CUPTI",
                    {rank_of(0, kPair, "all_reduce", {{0, 900}, {1000, 1100}}, 5'000'700),
                     rank_of(1, kPair, "all_reduce", {{0, 1600}, {1700, 1800}}, 5'000'000)}};
  EXPECT_EQ(put_on_one_clock(timeline), RankClocks{});
  EXPECT_THAT(times_of(timeline.ranks[0]), ElementsAre(Pair(700, 1600), Pair(1700, 1800)));
  EXPECT_THAT(times_of(timeline.ranks[1]), ElementsAre(Pair(0, 1600), Pair(1700, 1800)));
  EXPECT_EQ(timeline.ranks[0].clock_origin_ns, timeline.ranks[1].clock_origin_ns);
  EXPECT_EQ(timeline.ranks[0].remark, "");
  EXPECT_EQ(put_on_one_clock(timeline), RankClocks{});  // nothing is left to do
  EXPECT_THAT(times_of(timeline.ranks[0]), ElementsAre(Pair(700, 1600), Pair(1700, 1800)));
}

TEST(RankClocks, NothingMovesByAnUnknownClock) {
  Timeline timeline{"cuda, events",
                    {rank_of(0, kPair, "all_reduce", {{0, 900}}, 5'000'700),
                     rank_of(1, kPair, "all_reduce", {{0, 1600}}, 0)}};
  EXPECT_EQ(put_on_one_clock(timeline), (RankClocks{.num_unknown = 1}));
  EXPECT_THAT(times_of(timeline.ranks[0]), ElementsAre(Pair(0, 900)));
}

// Rank 1's clock, of another host, is 300 late: its second call would begin after rank 0 has left.
TEST(RankClocks, NobodyLeavesAnAllReduceBeforeTheLastHasCome) {
  Timeline timeline{"cuda, CUPTI",
                    {rank_of(0, kPair, "all_reduce", {{0, 100}, {200, 250}}, 1000),
                     rank_of(1, kPair, "all_reduce", {{50, 400}, {500, 550}}, 1000)}};
  EXPECT_EQ(put_on_one_clock(timeline), (RankClocks{.largest_move_ns = 250}));
  EXPECT_THAT(times_of(timeline.ranks[0]), ElementsAre(Pair(200, 300), Pair(400, 450)));
  EXPECT_THAT(times_of(timeline.ranks[1]), ElementsAre(Pair(0, 350), Pair(450, 500)));
  EXPECT_EQ(timeline.ranks[0].remark, "");
  EXPECT_THAT(timeline.ranks[1].remark, HasSubstr("clock moved by"));
}

TEST(RankClocks, NothingIsReceivedBeforeItIsSent) {
  const auto steps = [](int64_t send_ns, int64_t recv_ns) {
    return Timeline{"cuda, CUPTI",
                    {rank_of(0, kMessages, "send", {{send_ns, send_ns + 10}}, 1000),
                     rank_of(1, kMessages, "recv", {{recv_ns, recv_ns + 30}}, 1000)}};
  };
  Timeline impossible = steps(100, 20);
  EXPECT_EQ(put_on_one_clock(impossible), (RankClocks{.largest_move_ns = 50}));
  Timeline late_receiver = steps(100, 200);  // a small message lies there meanwhile
  EXPECT_EQ(put_on_one_clock(late_receiver), RankClocks{});
}

// A rank has pushed its block by a copy engine before the other one has come.
TEST(RankClocks, CopiesByCopyEnginesBindNobody) {
  Timeline timeline{"cuda, CUPTI",
                    {rank_of(0, kPair, "all_gather", {{0, 100}}, 1000),
                     rank_of(1, kPair, "all_gather", {{500, 600}}, 1000)}};
  for (RankTimeline& rank : timeline.ranks) {
    rank.kernel_names = {"copy from GPU 0 to GPU 1"};
  }
  EXPECT_EQ(put_on_one_clock(timeline), RankClocks{});
}

TEST(RankClocks, BroadcastsBindNobody) {
  Timeline timeline{"cuda, CUPTI",
                    {rank_of(0, kPair, "broadcast", {{0, 10}}, 1000),
                     rank_of(1, kPair, "broadcast", {{500, 510}}, 1000)}};
  EXPECT_EQ(put_on_one_clock(timeline), RankClocks{});
}

// Rank 1 is behind rank 0 in the first call and before it in the second, by more than they take.
TEST(RankClocks, ClocksThatDriftContradict) {
  Timeline timeline{"cuda, CUPTI",
                    {rank_of(0, kPair, "all_gather", {{0, 10}, {500, 510}}, 1000),
                     rank_of(1, kPair, "all_gather", {{100, 110}, {400, 410}}, 1000)}};
  EXPECT_EQ(put_on_one_clock(timeline), (RankClocks{.contradictory = true}));
  EXPECT_THAT(times_of(timeline.ranks[1]), ElementsAre(Pair(100, 110), Pair(400, 410)));
  EXPECT_THAT(timeline.ranks[0].remark, HasSubstr("contradict"));
}

TEST(RankClocks, RanksThatShareNoCallFollowThoseThatDo) {
  const TimelineSequence other{.name = "data of ranks 1, 2", .ranks = {1, 2}};
  Timeline timeline{"cuda, CUPTI",
                    {rank_of(0, kPair, "all_reduce", {{0, 10}}, 1000),
                     rank_of(1, kPair, "all_reduce", {{50, 60}}, 1000),
                     rank_of(2, other, "all_reduce", {{75, 80}}, 1000)}};
  TimelineTask second = communication_at(1, 62, 70, GroupKind::kData, 8);
  second.sequence = 1;
  timeline.ranks[1].sequences.push_back(other);
  timeline.ranks[1].tasks.push_back(second);
  timeline.ranks[1].kernels.push_back({1, 0, 62, 70});
  EXPECT_EQ(put_on_one_clock(timeline), (RankClocks{.largest_move_ns = 45}));
  EXPECT_THAT(times_of(timeline.ranks[0]), ElementsAre(Pair(0, 10)));
  EXPECT_THAT(times_of(timeline.ranks[1]), ElementsAre(Pair(10, 20), Pair(22, 30)));
  EXPECT_THAT(times_of(timeline.ranks[2]), ElementsAre(Pair(30, 35)));
}

TEST(RankClocks, OneRankStaysAsItIs) {
  Timeline timeline{"cuda", {rank_of(0, kPair, "all_reduce", {{7, 9}}, 1000)}};
  EXPECT_EQ(put_on_one_clock(timeline), RankClocks{});
  EXPECT_THAT(times_of(timeline.ranks[0]), ElementsAre(Pair(7, 9)));
}

}  // namespace
}  // namespace braid
