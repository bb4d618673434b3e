#include "sim/simulate.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "base/expect_error.h"
#include "ir/text.h"
#include "sim/contention.h"
#include "sim/fixed_costs.h"
#include "support/random_ranks.h"
#include "support/thinned.h"

namespace braid {

// For messages of failing tests.
static bool operator==(const TaskTimes& a, const TaskTimes& b) {
  return a.start_ns == b.start_ns && a.end_ns == b.end_ns;
}
static std::ostream& operator<<(std::ostream& out, const TaskTimes& times) {
  return out << times.start_ns << " to " << times.end_ns;
}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Times = TaskTimes;

/// Streams, groups and buffers that all programs of these tests have, then the tasks. Ranges of x
/// are read, those of y written.
Program rank_program(int rank, int num_ranks, int num_events, const std::string& tasks) {
  std::string text =
      fmt::format("program step rank={} ranks={} events={}\n", rank, num_ranks, num_events) +
      "stream compute kind=compute priority=0\n"
      "stream second kind=compute priority=1\n"
      "stream comm kind=comm priority=1\n"
      "stream other kind=comm priority=1\n"
      "stream copy kind=copy priority=0\n";
  if (num_ranks > 1) {
    text += "group data kind=data ranks=0,1\ngroup tensor kind=tensor ranks=0,1\n";
  }
  return parse_program(text +
                       "buffer x f32 [1000] io persistent device\n"
                       "buffer w f32 [1,1] io persistent device\n"
                       "buffer y f32 [1000] io persistent device\n"
                       "buffer h f32 [1000] activation step host\n" +
                       tasks);
}

/// Rates are halves and quarters, so that times are whole numbers.
constexpr Contention kHalves{.gemm_and_sm_comm = {.compute = 0.5},
                             .memory_bound_and_sm_comm = {.compute = 0.75},
                             .compute_and_copy_engine = {},
                             .comm_sms = 8};

class Simulate : public testing::Test {
 protected:
  /// Times of the tasks, rank by rank.
  std::vector<std::vector<Times>> times_of_ranks(const SimOptions& options = {}) {
    const RankPrograms ranks = one_program_per_rank(programs_);
    const SimResult result = simulate(ranks, model_, options);
    step_ns_ = result.step_ns;
    std::vector<std::vector<Times>> times;
    for (const SimRank& rank : result.ranks) {
      const auto its_times = braid::times_of(ranks, result, rank);
      times.emplace_back(its_times.begin(), its_times.end());
    }
    return times;
  }
  std::vector<Times> times_of_one(int num_events, const std::string& tasks) {
    programs_ = {rank_program(0, 1, num_events, tasks)};
    return times_of_ranks().front();
  }
  void two_ranks(int events0, const std::string& tasks0, int events1, const std::string& tasks1) {
    programs_ = {rank_program(0, 2, events0, tasks0), rank_program(1, 2, events1, tasks1)};
  }

  FixedCosts model_{small_cluster(2, 8), kHalves};
  std::vector<Program> programs_;
  int64_t step_ns_ = 0;
};

/// Alone an exchange takes 120 ns; products of x take as many ns as the range has elements.
class SimulateExchange : public Simulate {
 protected:
  static constexpr Contention kRows{
      .gemm_and_sm_comm = {.compute = 0.5},
      .memory_bound_and_sm_comm = {.compute = 0.5},
      .compute_and_copy_engine = {},
      .comm_sms = 32,
      .compute_and_row_exchange = {.compute = 0.75, .communication = 0.5}};

  /// Of the group's communication; empty: without a number.
  std::string max_sms_;

  Program program(int rank, const std::string& tasks) const {
    return parse_program(fmt::format("program step rank={} ranks=2 events=1\n", rank) +
                         "stream compute kind=compute priority=0\n"
                         "stream comm.expert kind=comm priority=2\n"
                         "group expert.exchange kind=expert ranks=0,1" +
                         max_sms_ +
                         "\n"
                         "buffer rows f32 [30,4] io persistent device\n"
                         "buffer come f32 [60,4] io persistent device\n"
                         "buffer offsets i32 [6] io persistent device\n"
                         "buffer x f32 [1000] io persistent device\n"
                         "buffer w f32 [1,1] io persistent device\n"
                         "buffer y f32 [1000] io persistent device\n"
                         "copy(x[0:10] -> y[0:10]) compute forward record=e0\n" +
                         tasks);
  }
  /// Times of the tasks of rank 0 after the first, which ends at 10.
  std::vector<Times> times_of(const std::string& tasks) {
    programs_ = {program(0, tasks), program(1, tasks)};
    const RankPrograms ranks = one_program_per_rank(programs_);
    const SimResult result = simulate(ranks, rows_model_);
    const auto times = braid::times_of(ranks, result, result.ranks.front());
    return {times.begin() + 1, times.end()};
  }
  static std::string exchange(const std::string& stream) {
    return "dispatch_rows(rows, offsets -> come) {group=0, experts=2, copies=1, "
           "has_weights=false, drops=false} " +
           stream + " comm wait=e0\n";
  }

  FixedCosts rows_model_{small_cluster(2, 8), kRows};
};

TEST_F(SimulateExchange, LastsLongerBesideCompute) {
  // Half of its rate, and compute has 1 - 0.5 * 16 / 32 of its own: 240 ns, of which 40 are alone.
  EXPECT_THAT(times_of(exchange("comm.expert") + "copy(x[0:150] -> y[0:150]) compute forward\n"),
              ElementsAre(Times{10, 230}, Times{10, 210}));
}

TEST_F(SimulateExchange, ByHalfTheSmsTakesLongerAndLeavesComputeMore) {
  max_sms_ = " max_sms=8";
  // 120 ns alone become 207, and half as fast beside compute, which has 1 - 0.5 * 8 / 32.
  const auto times =
      times_of(exchange("comm.expert") + "copy(x[0:350] -> y[0:350]) compute forward\n");
  EXPECT_EQ(times[1], (Times{10, 410}));
  const double beside = 400 * 0.5;
  EXPECT_NEAR(static_cast<double>(times[0].end_ns), 410 + 120 * row_exchange_slowdown(8) - beside,
              2);
}

TEST_F(SimulateExchange, WaitsForAKernelThatFillsAllSms) {
  // The product, which begins at the same time, keeps its rate and the exchange begins at its end.
  EXPECT_THAT(times_of(exchange("comm.expert") + "linear(x[0:100] [100,1], w -> y[0:100] [100,1]) "
                                                 "{has_bias=false, adds_bias=true} compute "
                                                 "forward\n"),
              ElementsAre(Times{10, 230}, Times{10, 110}));
}

TEST_F(SimulateExchange, OnTheComputeStreamCostsWhatItCostsAlone) {
  EXPECT_THAT(times_of(exchange("compute") + "linear(x[0:100] [100,1], w -> y[0:100] [100,1]) "
                                             "{has_bias=false, adds_bias=true} compute "
                                             "forward\n"),
              ElementsAre(Times{10, 130}, Times{130, 230}));
}

TEST_F(Simulate, TasksOfAStreamFollowEachOther) {
  EXPECT_THAT(times_of_one(0,
                           "copy(x[0:10] -> y[0:10]) compute forward\n"
                           "copy(x[0:20] -> y[0:20]) compute forward\n"
                           "copy(x[0:5] -> y[0:5]) compute forward\n"),
              ElementsAre(Times{0, 10}, Times{10, 30}, Times{30, 35}));
  EXPECT_EQ(step_ns_, 35);
}

TEST_F(Simulate, EmptyProgramTakesNoTime) {
  EXPECT_TRUE(times_of_one(0, "").empty());
  EXPECT_EQ(step_ns_, 0);
}

TEST_F(Simulate, OrderTasksTakeNoTime) {
  EXPECT_THAT(times_of_one(1,
                           "copy(x[0:10] -> y[0:10]) compute forward\n"
                           "undefine(-> y[0:10]) compute forward record=e0\n"
                           "copy(x[20:50] -> y[20:50]) second forward wait=e0\n"),
              ElementsAre(Times{0, 10}, Times{10, 10}, Times{10, 40}));
}

TEST_F(Simulate, AWaitHoldsUpItsStreamOnly) {
  EXPECT_THAT(times_of_one(1,
                           "copy(x[0:10] -> y[0:10]) compute forward record=e0\n"
                           "offload(x[0:4] -> h[0:4]) copy forward wait=e0\n"
                           "copy(x[20:50] -> y[20:50]) compute forward\n"),
              ElementsAre(Times{0, 10}, Times{10, 14}, Times{10, 40}));
}

TEST_F(Simulate, ADeviceComputesOneTaskAtATimeByPriority) {
  // When the first copy ends, both streams have a task that is ready; "second" has priority 1.
  EXPECT_THAT(times_of_one(1,
                           "copy(x[0:10] -> y[0:10]) compute forward record=e0\n"
                           "copy(x[0:20] -> y[0:20]) compute forward\n"
                           "copy(x[30:60] -> y[30:60]) second forward wait=e0\n"),
              ElementsAre(Times{0, 10}, Times{40, 60}, Times{10, 40}));
}

TEST_F(Simulate, WhatHasBegunIsNotInterrupted) {
  EXPECT_THAT(times_of_one(1,
                           "offload(x[0:10] -> h[0:10]) copy forward record=e0\n"
                           "copy(x[0:30] -> y[0:30]) compute forward\n"
                           "copy(x[0:5] -> y[0:5]) compute forward\n"
                           "copy(x[40:60] -> y[40:60]) second forward wait=e0\n"),
              ElementsAre(Times{0, 10}, Times{0, 30}, Times{50, 55}, Times{30, 50}));
}

TEST_F(Simulate, EachDirectionOfHostCopiesIsOneEngine) {
  EXPECT_THAT(times_of_one(0,
                           "offload(x[0:10] -> h[0:10]) copy forward\n"
                           "offload(x[10:30] -> h[10:30]) comm forward\n"
                           "reload(h[50:90] -> y[50:90]) other forward\n"),
              // "comm" has the higher priority.
              ElementsAre(Times{20, 30}, Times{0, 20}, Times{0, 40}));
}

TEST_F(Simulate, ACollectiveBeginsWithItsLastRank) {
  two_ranks(0,
            "copy(x[0:10] -> y[0:10]) compute forward\n"
            "all_reduce(-> rw x[0:7]) {group=0} compute comm\n",
            0,
            "copy(x[0:30] -> y[0:30]) compute forward\n"
            "all_reduce(-> rw x[0:7]) {group=0} compute comm\n");
  EXPECT_THAT(times_of_ranks(), ElementsAre(ElementsAre(Times{0, 10}, Times{30, 37}),
                                            ElementsAre(Times{0, 30}, Times{30, 37})));
}

TEST_F(Simulate, AMessageJoinsItsTwoEnds) {
  model_.latency_ns = 3;
  two_ranks(1,
            "copy(x[0:10] -> y[0:10]) compute forward record=e0\n"
            "send(x[0:7]) {group=0, peer=1, channel=0} comm comm wait=e0\n"
            "copy(x[0:20] -> y[0:20]) compute forward\n",
            1,
            "recv(-> y[0:7]) {group=0, peer=0, channel=0} comm comm record=e0\n"
            "copy(y[0:7] -> x[0:7]) compute forward wait=e0\n");
  // A copy beside a message of 7 ns of bytes in 10: 6 of 8 SMs, rate 1 - 0.25 * 6 / 8 = 13 / 16:
  // 8.125 of its 20 ns are done when the message ends at 20.
  EXPECT_THAT(times_of_ranks(), ElementsAre(ElementsAre(Times{0, 10}, Times{10, 20}, Times{10, 32}),
                                            ElementsAre(Times{10, 20}, Times{20, 27})));
}

constexpr const char* kGemmBesideReduce =
    "linear(x[0:100] [100,1], w -> y[0:100] [100,1]) {has_bias=false, adds_bias=true} compute "
    "forward\n"
    "all_reduce(-> rw x[200:300]) {group=0} comm comm\n";

TEST_F(Simulate, SmsThatSendSlowProducts) {
  two_ranks(0, kGemmBesideReduce, 0, kGemmBesideReduce);
  // At half the rate 50 of 100 ns of work are done when the communication ends.
  const auto slowed = ElementsAre(Times{0, 150}, Times{0, 100});
  EXPECT_THAT(times_of_ranks(), ElementsAre(slowed, slowed));
  const auto alone = ElementsAre(Times{0, 100}, Times{0, 100});
  EXPECT_THAT(times_of_ranks({.contention = false}), ElementsAre(alone, alone));
}

TEST_F(Simulate, SmsThatSendSlowMemoryBoundKernelsLess) {
  const std::string tasks =
      "copy(x[0:100] -> y[0:100]) compute forward\n"
      "all_reduce(-> rw x[200:300]) {group=0} comm comm\n";
  two_ranks(0, tasks, 0, tasks);
  EXPECT_EQ(times_of_ranks()[0][0], (Times{0, 125}));  // 75 of 100 ns after 100 ns
}

TEST_F(Simulate, ComputeMaySlowCommunication) {
  Contention mutual = kHalves;
  mutual.gemm_and_sm_comm.communication = 0.25;
  model_ = FixedCosts(small_cluster(2, 8), mutual);
  two_ranks(0, kGemmBesideReduce, 0, kGemmBesideReduce);
  // The product ends after 200 ns at half its rate; the other has then done 50 of 100 ns.
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 200}, Times{0, 250}));
}

TEST_F(Simulate, TransfersShareALink) {
  const std::string tasks =
      "copy(x[0:50] -> y[0:50]) compute forward record=e0\n"
      "all_reduce(-> rw x[200:300]) {group=0} comm comm\n"
      "all_reduce(-> rw x[300:360]) {group=1} other comm wait=e0\n";
  two_ranks(1, tasks, 1, tasks);
  // The copy runs at 3/4 and ends at 67 (66.67 rounded up). Then 33 ns of the first are left, and
  // at half the rate it ends at 133; by then 33 of 60 ns of the second are done.
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 67}, Times{0, 133}, Times{67, 160}));
}

TEST_F(Simulate, LatencyIsNotLengthenedByOthers) {
  model_.latency_ns = 100;
  const std::string tasks =
      "all_reduce(-> rw x[0:100]) {group=0} comm comm\n"
      "all_reduce(-> rw x[200:300]) {group=1} other comm\n";
  two_ranks(0, tasks, 0, tasks);
  // Bytes of both flow from 100 on, at half the rate.
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 300}, Times{0, 300}));
}

// The bytes of the first flow while the second waits for its latency; the copy makes it 70 ns late.
TEST_F(Simulate, ALinkIsSharedOnlyWhileBytesFlow) {
  model_ = FixedCosts(small_cluster(2, 8), {});
  model_.latency_ns = 100;
  const std::string tasks =
      "copy(x[0:70] -> y[0:70]) compute forward record=e0\n"
      "all_reduce(-> rw x[0:100]) {group=0} comm comm\n"
      "all_reduce(-> rw x[200:300]) {group=1} other comm wait=e0\n";
  two_ranks(1, tasks, 1, tasks);
  // 100 to 170: 70 of the first's 100 ns of bytes. Its other 30 take 60, to 230; by then 30 of the
  // second's are done, and 70 are left.
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 70}, Times{0, 230}, Times{70, 300}));
}

// The latency of a call is over at its time, whoever else comes later.
TEST_F(Simulate, ALateCallDoesNotLengthenALatencyThatIsOver) {
  model_ = FixedCosts(small_cluster(2, 8), {});
  model_.latency_ns = 100;
  const std::string tasks =
      "copy(x[0:150] -> y[0:150]) compute forward record=e0\n"
      "all_reduce(-> rw x[0:300]) {group=0} comm comm\n"
      "all_reduce(-> rw x[300:600]) {group=1} other comm wait=e0\n";
  two_ranks(1, tasks, 1, tasks);
  // Bytes of the first flow from 100, of the second from 250: 150 of the first are left, to 550.
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 150}, Times{0, 550}, Times{150, 700}));
}

/// Four ranks on two nodes. Alone, each collective takes 100 ns.
class SimulateAdapters : public Simulate {
 protected:
  /// `tasks` of each rank, which communicates in groups 0 and 1.
  std::vector<std::vector<Times>> times_of_groups(const std::array<std::string, 2>& groups,
                                                  const std::string& tasks) {
    programs_.clear();
    for (int rank = 0; rank < 4; ++rank) {
      programs_.push_back(parse_program(
          fmt::format("program step rank={} ranks=4 events=1\n", rank) +
          "stream comm kind=comm priority=1\nstream other kind=comm priority=1\n"
          "group first kind=data ranks=" +
          groups[0].substr(4 * static_cast<size_t>(rank), 3) +
          "\ngroup second kind=tensor ranks=" + groups[1].substr(4 * static_cast<size_t>(rank), 3) +
          "\nbuffer x f32 [1000] io persistent device\n" + tasks));
    }
    return times_of_ranks();
  }

  static constexpr const char* kBoth =
      "all_reduce(-> rw x[0:100]) {group=0} comm comm\n"
      "all_reduce(-> rw x[200:300]) {group=1} other comm\n";

  SimulateAdapters() { model_ = FixedCosts(small_cluster(4, 2), {}); }
};

TEST_F(SimulateAdapters, GroupsOnOneAdapterTakeTwiceAsLong) {
  for (const auto& rank : times_of_groups({"0,2 1,3 0,2 1,3", "0,2 1,3 0,2 1,3"}, kBoth)) {
    EXPECT_THAT(rank, ElementsAre(Times{0, 200}, Times{0, 200}));
  }
}

TEST_F(SimulateAdapters, NvlinkAndAdaptersAreNotShared) {
  for (const auto& rank : times_of_groups({"0,1 0,1 2,3 2,3", "0,2 1,3 0,2 1,3"}, kBoth)) {
    EXPECT_THAT(rank, ElementsAre(Times{0, 100}, Times{0, 100}));
  }
}

TEST_F(SimulateAdapters, GroupsOfDifferentRanksAreApart) {
  // Rank 0 has two calls on its adapter; ranks 1 and 3, with one each, have theirs for themselves.
  programs_.clear();
  for (int rank = 0; rank < 4; ++rank) {
    const bool is_even = rank % 2 == 0;
    programs_.push_back(
        parse_program(fmt::format("program step rank={} ranks=4 events=0\n", rank) +
                      "stream comm kind=comm priority=1\nstream other kind=comm priority=1\n"
                      "group first kind=data ranks=" +
                      (is_even ? "0,2" : "1,3") + "\ngroup second kind=tensor ranks=" +
                      (is_even ? "0,2" : "1,3") + "\nbuffer x f32 [1000] io persistent device\n" +
                      (is_even ? kBoth : "all_reduce(-> rw x[0:100]) {group=0} comm comm\n")));
  }
  const auto times = times_of_ranks();
  EXPECT_THAT(times[0], ElementsAre(Times{0, 200}, Times{0, 200}));
  EXPECT_THAT(times[1], ElementsAre(Times{0, 100}));
}

// Above units of one node with a quarter of the rate, two groups share a device's part of the links
// there; one inside a unit shares the adapter with one that leaves it, which needs a quarter.
TEST_F(SimulateAdapters, LinksAboveUnitsAreALevelOfTheirOwn) {
  Cluster cluster = small_cluster(4, 1);
  cluster.device.node.levels = {{.nodes = 2, .oversubscription = 4}};
  model_ = FixedCosts(cluster, {});
  for (const auto& rank : times_of_groups({"0,2 1,3 0,2 1,3", "0,2 1,3 0,2 1,3"}, kBoth)) {
    EXPECT_THAT(rank, ElementsAre(Times{0, 200}, Times{0, 200}));
  }
  // Three quarters of the adapter for 100 ns leave a quarter of the second's time.
  for (const auto& rank : times_of_groups({"0,2 1,3 0,2 1,3", "0,1 0,1 2,3 2,3"}, kBoth)) {
    EXPECT_THAT(rank, ElementsAre(Times{0, 100}, Times{0, 125}));
  }
}

TEST_F(Simulate, DirectionsOfALinkAreApart) {
  two_ranks(0,
            "send(x[0:100]) {group=0, peer=1, channel=0} comm comm\n"
            "recv(-> y[0:100]) {group=0, peer=1, channel=0} other comm\n",
            0,
            "recv(-> y[0:100]) {group=0, peer=0, channel=0} comm comm\n"
            "send(x[0:100]) {group=0, peer=0, channel=0} other comm\n");
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 100}, Times{0, 100}));
}

TEST_F(Simulate, NetworkLinksNeedFewSms) {
  model_ = FixedCosts(small_cluster(2, 1), kHalves);
  two_ranks(0, kGemmBesideReduce, 0, kGemmBesideReduce);
  // 50 of 450 GB/s: one of 8 SMs, rate 1 - 0.5 / 8 = 15 / 16, so 93.75 of 100 ns after 100 ns.
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 107}, Times{0, 100}));
}

TEST_F(Simulate, AGroupOfOneTakesNoTime) {
  Program program = rank_program(0, 1, 0, "");
  program = parse_program(
      "program step rank=0 ranks=1 events=0\nstream compute kind=compute priority=0\n"
      "group data kind=data ranks=0\nbuffer x f32 [1000] io persistent device\n"
      "all_reduce(-> rw x) {group=0} compute comm\n");
  programs_ = {program};
  EXPECT_THAT(times_of_ranks()[0], ElementsAre(Times{0, 0}));
}

TEST_F(Simulate, RunsAgainWithEqualResults) {
  two_ranks(0, kGemmBesideReduce, 0, kGemmBesideReduce);
  const RankPrograms ranks = one_program_per_rank(programs_);
  Simulator simulator(ranks, model_);
  const std::vector<Times> first = simulator.run().times;
  EXPECT_EQ(simulator.run({.contention = false}).step_ns, 100);
  const SimResult& again = simulator.run();
  EXPECT_EQ(again.times, first);
  EXPECT_EQ(again.ranks[0].compute_ns, 150);
  EXPECT_EQ(again.ranks[0].end_ns, 150);
}

TEST_F(Simulate, TimelinesAreThoseOfTheTrace) {
  two_ranks(0, kGemmBesideReduce, 0, kGemmBesideReduce);
  const RankPrograms ranks = one_program_per_rank(programs_);
  const RankTimeline timeline = simulated_timeline(ranks, simulate(ranks, model_), 1);
  EXPECT_EQ(timeline.rank, 1);
  ASSERT_EQ(timeline.tasks.size(), 2u);
  EXPECT_EQ(timeline.tasks[1].group, GroupKind::kData);
  EXPECT_EQ(timeline.tasks[0].end_ns, 150);
}

TEST_F(Simulate, DeadlocksAreDescribedAsByTheVerifier) {
  two_ranks(0,
            "send(x[0:7]) {group=0, peer=1, channel=0} comm comm\n"
            "recv(-> y[0:7]) {group=0, peer=1, channel=0} comm comm\n",
            0,
            "send(x[0:7]) {group=0, peer=0, channel=0} comm comm\n"
            "recv(-> y[0:7]) {group=0, peer=0, channel=0} comm comm\n");
  const auto faults = verify_ranks(one_program_per_rank(programs_));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults.front().message, HasSubstr("deadlock"));
  EXPECT_THAT(message_of<InternalError>([&] { times_of_ranks(); }), HasSubstr(faults[0].message));
}

TEST_F(Simulate, WhatDoesNotFitTogetherIsRefused) {
  two_ranks(0, "all_reduce(-> rw x[0:7]) {group=0} comm comm\n", 0, "");
  EXPECT_THAT(message_of<InternalError>([&] { times_of_ranks(); }),
              HasSubstr("the programs of 2 ranks cannot be simulated: "));
  model_ = FixedCosts(small_cluster(1, 8), kHalves);
  EXPECT_THAT(message_of<InternalError>([&] { times_of_ranks(); }),
              HasSubstr("2 ranks on the 1 devices"));
}

/// Programs of ranks that come `num_copies` times, in groups of their own.
struct Copies {
  Copies(std::vector<Program> one, int num_copies) : programs(std::move(one)) {
    const auto size = static_cast<int>(programs.size());
    for (Program& program : programs) {
      program.num_ranks = size * num_copies;
      shared.programs.push_back(&program);
    }
    for (int copy = 0; copy < num_copies; ++copy) {
      for (int rank = 0; rank < size; ++rank) {
        shared.program_of.push_back(static_cast<uint32_t>(rank));
        Program own = programs[static_cast<size_t>(rank)];
        own.rank += copy * size;
        for (Group& group : own.groups) {
          for (int& member : group.ranks) {
            member += copy * size;
          }
        }
        all.push_back(std::move(own));
      }
    }
    shared.ranks_of_group = [this, size](int rank, GroupId group) {
      std::vector<int> ranks =
          programs[static_cast<size_t>(rank % size)].groups[group.index()].ranks;
      for (int& member : ranks) {
        member += rank / size * size;
      }
      return ranks;
    };
  }

  std::vector<Program> programs;
  RankPrograms shared;       // a program for all copies of a rank
  std::vector<Program> all;  // a program per rank
};

TEST(SimulateRandom, MatchedProgramsTakeAsLong) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Copies copies(random_ranks(seed, {.num_ranks = 4}), 3);
    const auto model = make_analytic_model(small_cluster(12, 6));
    const MatchedPrograms matched(copies.shared, *model);
    const SimResult expected = simulate(copies.shared, *model);
    const SimResult actual = simulate(matched, *model);
    EXPECT_EQ(actual.step_ns, expected.step_ns);
    ASSERT_EQ(actual.times.size(), expected.times.size());
    for (size_t i = 0; i < actual.times.size(); ++i) {
      ASSERT_EQ(actual.times[i].start_ns, expected.times[i].start_ns) << "seed " << seed;
      ASSERT_EQ(actual.times[i].end_ns, expected.times[i].end_ns) << "seed " << seed;
    }
    EXPECT_EQ(simulate_step(matched, *model), expected.step_ns);
    PriceChanges changes;
    changes.network_links = 3;
    changes.products = 2;
    EXPECT_EQ(simulate_step(matched, *model, {}, 1.0, changes),
              simulate(copies.shared, *model, {}, 1.0, changes).step_ns);
    const SimOptions alone{.contention = false, .starts_on_arrival = true};
    EXPECT_EQ(simulate_step(matched, *model, alone), simulate(matched, *model, alone).step_ns);
  }
}

TEST(SimulateRandom, RanksThatAreAlikeStandForEachOther) {
  for (uint64_t seed = 1; seed <= thinned_count(200u, 5); ++seed) {
    const Copies copies(random_ranks(seed, {.num_ranks = 4}), 3);
    // Nodes of 8 cut the third copy off, nodes of 6 go through the second.
    for (const int per_node : {4, 6, 8}) {
      const auto model = make_analytic_model(small_cluster(12, per_node));
      const RankPrograms all = one_program_per_rank(copies.all);
      const SimResult few = simulate(copies.shared, *model);
      const SimResult every = simulate(all, *model);
      ASSERT_EQ(every.ranks.size(), 12u);
      EXPECT_GE(few.ranks.size(), 4u);
      EXPECT_LE(few.ranks.size(), per_node == 4 ? 4u : 12u);
      ASSERT_EQ(few.step_ns, every.step_ns) << "seed " << seed << " nodes of " << per_node;
      for (int rank = 0; rank < 12; ++rank) {
        ASSERT_EQ(simulated_timeline(copies.shared, few, rank).tasks,
                  simulated_timeline(all, every, rank).tasks)
            << "seed " << seed << " nodes of " << per_node << " rank " << rank;
      }
    }
  }
}

/// A call on a link of a device.
struct OnLink {
  Times times;         ///< from its last rank's arrival
  double used_ns = 0;  ///< of the link, if it had all of it
};
/// Kind of link, and whether outwards.
using Link = std::pair<size_t, bool>;

std::map<Link, std::vector<OnLink>> calls_by_link(const Program& program,
                                                  std::span<const TaskTimes> times,
                                                  const CostModel& model) {
  std::map<Link, std::vector<OnLink>> links;
  for (size_t i = 0; i < times.size(); ++i) {
    const OpSpec& spec = program.spec(program.tasks[i]);
    if (!comm_kind_of(spec)) {
      continue;
    }
    const Group& group = program.groups[group_of(program, spec).value().index()];
    const ProgramComm comm = comm_of(model, spec, program.rank, group);
    const CommDemand demand = comm_demand(model, comm.spec, comm.cost.ns);
    for (size_t kind = 0; kind < kNumLinkKinds; ++kind) {
      const double used_ns = static_cast<double>(comm.cost.ns) *
                             static_cast<double>(demand.bytes_part) / kFullRate *
                             static_cast<double>(demand.load[kind]) / kFullRate;
      for (const bool sends : {false, true}) {
        if (used_ns > 0 && spec.op != (sends ? "recv" : "send")) {
          links[{kind, sends}].push_back({times[i], used_ns});
        }
      }
    }
  }
  return links;
}

/// The calls that begin and end in that time: how long they use the link, and how many they are.
std::pair<double, int> used_between(const std::vector<OnLink>& calls, int64_t begin_ns,
                                    int64_t end_ns) {
  std::pair<double, int> used;
  for (const OnLink& call : calls) {
    if (call.times.start_ns >= begin_ns && call.times.end_ns <= end_ns) {
      used.first += call.used_ns;
      ++used.second;
    }
  }
  return used;
}

// Between the beginning of any call and the end of any other, a link moves at most what it can in
// that time. A nanosecond per call is for rounding.
TEST(SimulateRandom, NoLinkMovesMoreThanItCan) {
  int shared = 0;
  for (uint64_t seed = 1; seed <= thinned_count(100u, 5); ++seed) {
    const std::vector<Program> programs = random_ranks(seed, {.num_streams = 5});
    const RankPrograms ranks = one_program_per_rank(programs);
    FixedCosts model(small_cluster(4, seed % 2 == 0 ? 4 : 2), {});
    model.ns_per_elem = 1000;
    model.latency_ns = static_cast<int64_t>(seed % 3) * 700;
    const SimResult result = simulate(ranks, model);
    for (const SimRank& rank : result.ranks) {
      const Program& program = programs[static_cast<size_t>(rank.rank)];
      for (const auto& [link, calls] :
           calls_by_link(program, times_of(ranks, result, rank), model)) {
        for (size_t i = 0; i < calls.size() * calls.size(); ++i) {
          const int64_t begin_ns = calls[i / calls.size()].times.start_ns;
          const int64_t end_ns = calls[i % calls.size()].times.end_ns;
          const auto [used_ns, count] = used_between(calls, begin_ns, end_ns);
          shared += count > 1 ? 1 : 0;
          ASSERT_LE(used_ns, static_cast<double>(std::max<int64_t>(0, end_ns - begin_ns) + count))
              << "seed " << seed << " rank " << rank.rank << " link " << link.first;
        }
      }
    }
  }
  EXPECT_GT(shared, 100);
}

TEST(SimulateRandom, NothingIsFasterThanAlone) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const std::vector<Program> programs = random_ranks(seed);
    const RankPrograms ranks = one_program_per_rank(programs);
    const auto model = make_analytic_model(small_cluster(4, 2));
    const SimResult alone = simulate(ranks, *model, {.contention = false});
    const SimResult shared = simulate(ranks, *model);
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      const auto times = times_of(ranks, shared, shared.ranks[rank]);
      const auto times_alone = times_of(ranks, alone, alone.ranks[rank]);
      for (size_t task = 0; task < times.size(); ++task) {
        ASSERT_GE(times[task].end_ns - times[task].start_ns,
                  times_alone[task].end_ns - times_alone[task].start_ns)
            << "seed " << seed << " rank " << rank << " task " << task;
      }
    }
  }
}

}  // namespace
}  // namespace braid
