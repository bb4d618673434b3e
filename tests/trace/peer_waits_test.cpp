#include "trace/peer_waits.h"

#include <gmock/gmock.h>

#include <random>

#include "trace/exposed.h"
#include "trace/meetings.h"
#include "trace/timelines.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

constexpr GroupKind kData = GroupKind::kData;

/// A rank whose calls in groups of kind data are, in order, those of sequence 0.
RankTimeline rank_with(int rank, TimelineSequence sequence, std::vector<TimelineTask> tasks) {
  RankTimeline timeline = make_rank(rank);
  uint32_t call = 0;
  for (TimelineTask& task : tasks) {
    if (task.communication) {
      task.sequence = 0;
      task.call = call++;
    }
  }
  timeline.sequences = {std::move(sequence)};
  timeline.tasks = std::move(tasks);
  return timeline;
}

const TimelineSequence kPair{.name = "data of ranks 0, 1", .ranks = {0, 1}};

std::vector<int64_t> waits_of(const RankTimeline& rank) {
  std::vector<int64_t> waits;
  for (const TimelineTask& task : rank.tasks) {
    waits.push_back(task.wait_ns);
  }
  return waits;
}

// rank 0  compute |0--40|          |80-100|
//         dp         |30-------80|              waits until 60
// rank 1  compute |0--------60|    |80-100|
//         dp                |60--80|
TEST(PeerWaits, BytesMoveFromWhenTheLastRankHasCome) {
  Timeline timeline{
      "cuda, CUPTI",
      {rank_with(0, kPair,
                 {task_at(0, 0, 40), task_at(0, 80, 100), communication_at(1, 30, 80, kData, 64)}),
       rank_with(
           1, kPair,
           {task_at(0, 0, 60), task_at(0, 80, 100), communication_at(1, 60, 80, kData, 64)})}};
  find_peer_waits(timeline);
  EXPECT_THAT(waits_of(timeline.ranks[0]), ElementsAre(0, 0, 30));
  EXPECT_THAT(waits_of(timeline.ranks[1]), ElementsAre(0, 0, 0));
  const auto times = analyze_timeline(timeline);
  // Exposed from 40 to 80 on rank 0: it waits until 60.
  EXPECT_EQ(times[0].communication, (CommunicationTime{1, 64, 50, 40, 20}));
  EXPECT_EQ(times[1].communication, (CommunicationTime{1, 64, 20, 20, 0}));
}

TEST(PeerWaits, CallsMeetInTheOrderOfTheirSequence) {
  const auto calls = [](int64_t first, int64_t second) {
    return std::vector{communication_at(1, first, first + 10, kData, 8),
                       communication_at(1, second, second + 20, kData, 8)};
  };
  Timeline timeline{"cuda", {rank_with(0, kPair, calls(0, 20)), rank_with(1, kPair, calls(5, 32))}};
  // A rank that is in no sequence of these, and one of the same group name among others.
  timeline.ranks.push_back(
      rank_with(2, {.name = "data of ranks 2, 3", .ranks = {2, 3}}, calls(0, 39)));
  find_peer_waits(timeline);
  EXPECT_THAT(waits_of(timeline.ranks[0]), ElementsAre(5, 12));
  EXPECT_THAT(waits_of(timeline.ranks[1]), ElementsAre(0, 0));
  EXPECT_THAT(waits_of(timeline.ranks[2]), ElementsAre(0, 0));  // rank 3 is not in the timeline
}

TEST(PeerWaits, WhoEndedBeforeTheOtherCameDidNotWait) {
  const TimelineSequence message{
      .name = "pipeline messages of ranks 0, 1, channel 0", .ranks = {0, 1}, .messages = true};
  Timeline timeline{"cuda",
                    {rank_with(0, message, {communication_at(1, 10, 14, kData, 8)}),
                     rank_with(1, message, {communication_at(1, 30, 33, kData, 8)})}};
  find_peer_waits(timeline);
  EXPECT_THAT(waits_of(timeline.ranks[0]), ElementsAre(0));
  EXPECT_THAT(waits_of(timeline.ranks[1]), ElementsAre(0));
  std::swap(timeline.ranks[0].tasks, timeline.ranks[1].tasks);  // the receiver came first
  timeline.ranks[1].tasks[0].end_ns = 34;
  find_peer_waits(timeline);
  EXPECT_THAT(waits_of(timeline.ranks[0]), ElementsAre(0));
  EXPECT_THAT(waits_of(timeline.ranks[1]), ElementsAre(20));
}

TEST(PeerWaits, CopiesByCopyEnginesMoveBytesFromTheirStart) {
  Timeline timeline{"cuda, CUPTI",
                    {rank_with(0, kPair, {communication_at(1, 10, 80, kData, 64)}),
                     rank_with(1, kPair, {communication_at(1, 60, 90, kData, 64)})}};
  timeline.ranks[0].kernel_names = {"copy from GPU 0 to GPU 1", "ncclDevKernel_AllGather_RING_LL"};
  timeline.ranks[0].kernels = {{0, 0, 10, 80}};
  find_peer_waits(timeline);
  EXPECT_THAT(waits_of(timeline.ranks[0]), ElementsAre(0));
  timeline.ranks[0].kernels[0].name = 1;
  find_peer_waits(timeline);
  EXPECT_THAT(waits_of(timeline.ranks[0]), ElementsAre(50));
}

TEST(PeerWaits, AreNeverLongerThanTheTaskAndExposedPartsAddUp) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    Timeline timeline{"cuda", {}};
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<TimelineTask> tasks;
      for (uint32_t stream = 0; stream < 2; ++stream) {
        int64_t at = 0;
        for (int i = 0; i < 8; ++i) {
          const int64_t start = at + static_cast<int64_t>(random() % 20);
          at = start + static_cast<int64_t>(random() % 30);
          tasks.push_back(stream == 0 ? task_at(0, start, at)
                                      : communication_at(1, start, at, kData, 4));
        }
      }
      timeline.ranks.push_back(
          rank_with(rank, {.name = "data of ranks 0, 1, 2", .ranks = {0, 1, 2}}, tasks));
    }
    find_peer_waits(timeline);
    for (const RankTimes& times : analyze_timeline(timeline)) {
      const CommunicationTime& comm = times.communication;
      EXPECT_LE(0, comm.exposed_wait_ns);
      EXPECT_LE(comm.exposed_wait_ns, comm.exposed_ns);
      EXPECT_EQ(times.compute_ns + comm.exposed_ns + times.copy_ns + times.bubble_ns,
                times.step_ns);
    }
  }
}

TEST(Meetings, AreVisitedWithAllRanksThatAreThere) {
  const TimelineSequence three{.name = "data of ranks 0, 1, 2", .ranks = {0, 1, 2}};
  Timeline timeline{"sim", {}};
  for (const int rank : {0, 2}) {
    timeline.ranks.push_back(rank_with(
        rank, three, {communication_at(1, 0, 1, kData, 8), communication_at(1, 2, 3, kData, 8)}));
  }
  timeline.ranks[1].tasks.pop_back();
  std::vector<std::vector<std::pair<size_t, size_t>>> seen;
  for_each_meeting(timeline, [&](std::span<const CallAt> calls) {
    auto& meeting = seen.emplace_back();
    for (const CallAt& call : calls) {
      meeting.emplace_back(call.rank, call.task);
    }
  });
  EXPECT_THAT(seen, ElementsAre(ElementsAre(std::pair<size_t, size_t>(0, 0),
                                            std::pair<size_t, size_t>(1, 0))));
}

}  // namespace
}  // namespace braid
