#include "comm/links.h"

#include <ctime>

#include "comm/comm_fixture.h"

namespace braid {
namespace {

using ::testing::Each;

constexpr int64_t kMs = 1'000'000;

CommCall call_of_bytes(CommOp op, const Group& group, int64_t num_bytes) {
  return {.op = op,
          .group = &group,
          .send_elems = num_bytes,
          .recv_elems = 0,
          .dtype = DType::kU8,
          .what = "bytes"};
}

TEST(LaneBytes, AreThoseOfTheUsualAlgorithms) {
  const Group four = all_ranks(4);
  const auto bytes = [&](CommOp op) { return lane_bytes(call_of_bytes(op, four, 1000)); };
  EXPECT_EQ(bytes(CommOp::kAllReduce), 1500);
  EXPECT_EQ(bytes(CommOp::kAllGather), 750);
  EXPECT_EQ(bytes(CommOp::kReduceScatter), 750);
  EXPECT_EQ(bytes(CommOp::kAllToAll), 750);
  EXPECT_EQ(bytes(CommOp::kBroadcast), 1000);
  EXPECT_EQ(bytes(CommOp::kReduce), 1000);
  EXPECT_EQ(bytes(CommOp::kSend), 1000);
  EXPECT_EQ(bytes(CommOp::kRecv), 1000);
  CommCall shift = call_of_bytes(CommOp::kRingShift, four, 1000);
  for (const auto& [by, expected] : {std::pair{1, 1000.0}, {-3, 1000.0}, {0, 0.0}, {-8, 0.0}}) {
    shift.shift = by;
    EXPECT_EQ(lane_bytes(shift), expected);
  }
  const Group one = all_ranks(1);
  EXPECT_EQ(lane_bytes(call_of_bytes(CommOp::kAllReduce, one, 1000)), 0);
}

/// Links of 1 byte per ns and 100 ns between the ranks of tensor groups.
LinkOptions tensor_links() {
  LinkOptions links;
  links[GroupKind::kTensor] = {.latency_ns = 100, .bytes_per_s = 1e9};
  return links;
}

class LinkScheduleTest : public ::testing::Test {
 protected:
  int64_t send(int from, int to, int64_t num_bytes, int64_t now_ns,
               GroupKind kind = GroupKind::kTensor) {
    const Group group = make_group("g", {0, 1, 2, 3}, kind);
    const int sender[] = {from};
    const int receiver[] = {to};
    return schedule_.add(call_of_bytes(CommOp::kSend, group, num_bytes), sender, receiver, now_ns);
  }
  int64_t gather(std::vector<int> ranks, int64_t num_bytes, int64_t now_ns) {
    const Group group = make_group("g", std::move(ranks), GroupKind::kTensor);
    return schedule_.add(call_of_bytes(CommOp::kAllGather, group, num_bytes), group.ranks,
                         group.ranks, now_ns);
  }

  LinkSchedule schedule_{tensor_links(), 4};
};

TEST_F(LinkScheduleTest, TakesLatencyAndBytesOverBandwidth) {
  EXPECT_EQ(send(0, 1, 1000, 50), 50 + 1000 + 100);
  EXPECT_EQ(gather({2, 3}, 1000, 0), 500 + 100);
}

TEST_F(LinkScheduleTest, TransfersOfOneLaneQueueAndLatenciesOverlap) {
  EXPECT_EQ(send(0, 1, 1000, 0), 1100);
  EXPECT_EQ(send(0, 2, 1000, 10), 2100);  // the lane out of rank 0
  EXPECT_EQ(send(3, 2, 1000, 20), 3100);  // the lane into rank 2
  EXPECT_EQ(send(0, 1, 1000, 9000), 10100);
}

TEST_F(LinkScheduleTest, DirectionsAndOtherRanksDoNotDisturbEachOther) {
  EXPECT_EQ(send(0, 1, 1000, 0), 1100);
  EXPECT_EQ(send(1, 0, 1000, 0), 1100);
  EXPECT_EQ(send(2, 3, 1000, 0), 1100);
}

TEST_F(LinkScheduleTest, CollectivesTakeBothLanesOfAllTheirRanks) {
  EXPECT_EQ(send(0, 1, 1000, 0), 1100);
  EXPECT_EQ(gather({1, 2}, 2000, 0), 2100);  // after the send into rank 1
  EXPECT_EQ(send(2, 3, 1000, 0), 3100);      // after the gather
  EXPECT_EQ(send(3, 0, 1000, 0), 1100);
}

TEST_F(LinkScheduleTest, OtherKindsOfGroupsTakeNoTime) {
  EXPECT_EQ(send(0, 1, 1000, 7, GroupKind::kData), 7);
  EXPECT_EQ(send(0, 1, 1000, 0), 1100);
}

TEST(LinkSchedule, OfLatencyAloneKeepsNoLane) {
  LinkOptions links;
  links[GroupKind::kData].latency_ns = 100;
  LinkSchedule schedule(links, 2);
  const Group group = all_ranks(2);
  const CommCall call = call_of_bytes(CommOp::kAllReduce, group, 1 << 20);
  EXPECT_EQ(schedule.add(call, group.ranks, group.ranks, 0), 100);
  EXPECT_EQ(schedule.add(call, group.ranks, group.ranks, 30), 130);
}

TEST(LinkSchedule, RefusesNegativeLinks) {
  LinkOptions links;
  links[GroupKind::kData].latency_ns = -1;
  EXPECT_THROW(LinkSchedule(links, 2), InternalError);
  links[GroupKind::kData] = {.latency_ns = 0, .bytes_per_s = -1e9};
  EXPECT_THROW(LinkSchedule(links, 2), InternalError);
}

int64_t elapsed_ns(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              start)
      .count();
}

// Only lower bounds: a busy machine may make everything longer.
TEST(EmulatedLinks, MakeCommunicationTakeItsTime) {
  LinkOptions links;
  links[GroupKind::kData] = {.latency_ns = 5 * kMs, .bytes_per_s = 1e6};  // 1 byte per us
  const Transports transports = make_in_process_transports({.num_ranks = 2, .links = links});
  const Group slow = make_group("slow", {0, 1}, GroupKind::kData);
  const auto errors = on_threads(2, [&](int rank) {
    std::vector<float> values(2500, 1.0f);  // 10 kB: 10 ms
    EXPECT_GE(elapsed_ns(
                  [&] { transports[static_cast<size_t>(rank)]->run(all_reduce_of(slow, values)); }),
              15 * kMs);
    EXPECT_THAT(values, Each(2.0f));
    EXPECT_GE(elapsed_ns([&] {
                transports[static_cast<size_t>(rank)]->run(rank == 0 ? send_of(slow, values, 1)
                                                                     : recv_of(slow, values, 0));
              }),
              15 * kMs);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(EmulatedLinks, AreSharedByWhatGoesOnAtOnce) {
  LinkOptions links;
  links[GroupKind::kData].bytes_per_s = 1e6;
  const Transports transports = make_in_process_transports({.num_ranks = 2, .links = links});
  const Group groups[] = {make_group("a", {0, 1}), make_group("b", {0, 1}),
                          make_group("c", {0, 1})};
  const auto all_three = [&] {
    const auto errors = on_threads(6, [&](int thread) {
      std::vector<float> values(2500);
      transports[static_cast<size_t>(thread % 2)]->run(all_reduce_of(groups[thread / 2], values));
    });
    EXPECT_THAT(errors, Each(""));
  };
  EXPECT_GE(elapsed_ns(all_three), 30 * kMs);
}

TEST(EmulatedLinks, UseNoProcessorTime) {
  LinkOptions links;
  links[GroupKind::kData].latency_ns = 200 * kMs;
  const Transports transports = make_in_process_transports({.num_ranks = 2, .links = links});
  const Group group = all_ranks(2);
  const std::clock_t before = std::clock();
  on_threads(2, [&](int rank) {
    std::vector<float> value(1);
    transports[static_cast<size_t>(rank)]->run(all_reduce_of(group, value));
  });
  // Two threads that spin would use 200 to 400 ms.
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1);
}

TEST(EmulatedLinks, LetGoAtOnceWhenARankFails) {
  LinkOptions links;
  links[GroupKind::kData].latency_ns = 600'000 * kMs;
  const Transports transports = make_in_process_transports({.num_ranks = 2, .links = links});
  const Group group = all_ranks(2);
  const auto errors = on_threads(3, [&](int thread) {
    if (thread == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return transports[0]->abort("enough");
    }
    std::vector<float> value(1);
    transports[static_cast<size_t>(thread)]->run(all_reduce_of(group, value));
  });
  EXPECT_EQ(errors[0], "aborted: enough");
  EXPECT_EQ(errors[1], "aborted: enough");
}

}  // namespace
}  // namespace braid
