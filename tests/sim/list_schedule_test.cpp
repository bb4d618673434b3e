#include "sim/list_schedule.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "base/errors.h"
#include "base/expect_error.h"
#include "ir/dependencies.h"
#include "ir/text.h"
#include "sim/fixed_costs.h"
#include "sim/simulate.h"
#include "support/random_ranks.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Costs are elements of the first operand. a to d are step buffers of 10, 20, 30 and 40 elements.
Program rank_program(int rank, int num_ranks, const std::string& tasks) {
  std::string text = fmt::format("program step rank={} ranks={} events=0\n", rank, num_ranks) +
                     "stream compute kind=compute priority=0\n"
                     "stream comm kind=comm priority=1\n";
  if (num_ranks > 1) {
    text += "group data kind=data ranks=0,1\n";
  }
  return parse_program(text +
                       "buffer x f32 [1000] io persistent device\n"
                       "buffer y f32 [1000] io persistent device\n"
                       "buffer a f32 [10] activation step device\n"
                       "buffer b f32 [20] activation step device\n"
                       "buffer c f32 [30] activation step device\n"
                       "buffer d f32 [40] activation step device\n" +
                       tasks);
}

class ListScheduling : public testing::Test {
 protected:
  std::optional<ListSchedule> schedule(const ListScheduleOptions& options = {}) {
    return list_schedule(one_program_per_rank(programs_), model_, options);
  }
  std::vector<uint32_t> order(const ListScheduleOptions& options = {}, size_t program = 0) {
    std::vector<uint32_t> tasks;
    const ListSchedule result = schedule(options).value();
    for (const TaskId task : result.orders[program]) {
      tasks.push_back(task.value);
    }
    return tasks;
  }

  FixedCosts model_{small_cluster(2, 8)};
  std::vector<Program> programs_;
};

// Rank 1 reaches the sum 30 ns later than rank 0, which has a weight gradient after it.
constexpr const char* kWaits =
    "copy(x[0:10] -> x[100:110]) compute dgrad mb=0 vs=0\n"
    "all_reduce(-> rw x[0:7]) {group=0} comm comm mb=0 vs=0\n"
    "copy(x[0:7] -> y[0:7]) compute dgrad mb=0 vs=0\n"
    "copy(x[200:220] -> y[200:220]) compute wgrad mb=0 vs=0\n";

TEST_F(ListScheduling, AWeightGradientFillsAWaitForAnotherRank) {
  programs_ = {rank_program(0, 2, kWaits), rank_program(0, 2, kWaits)};
  programs_[1] = rank_program(1, 2,
                              "copy(x[0:40] -> x[100:140]) compute dgrad mb=0 vs=0\n"
                              "copy(x[100:107] -> x[0:7]) compute dgrad mb=0 vs=0\n"
                              "all_reduce(-> rw x[0:7]) {group=0} comm comm mb=0 vs=0\n"
                              "copy(x[0:7] -> y[0:7]) compute dgrad mb=0 vs=0\n");
  EXPECT_THAT(order(), ElementsAre(0, 3, 1, 2));
  EXPECT_EQ(schedule()->step_ns, 40 + 7 + 7 + 7);
}

TEST_F(ListScheduling, AWeightGradientWaitsForARoomyWaitIfAskedTo) {
  // The sum takes 7 ns, the first weight gradient 20, the second 6.
  programs_ = {rank_program(0, 2,
                            "all_reduce(-> rw x[0:7]) {group=0} comm comm mb=0 vs=0\n"
                            "copy(x[200:220] -> y[200:220]) compute wgrad mb=0 vs=0\n"
                            "copy(x[300:306] -> y[300:306]) compute wgrad mb=0 vs=0\n"
                            "copy(x[0:7] -> y[0:7]) compute dgrad mb=0 vs=0\n")};
  programs_.push_back(programs_[0]);
  programs_[1].rank = 1;
  EXPECT_THAT(order({.least_hidden_part = 0.5}), ElementsAre(0, 2, 3, 1));
  EXPECT_EQ(schedule({.least_hidden_part = 0.5})->step_ns, 7 + 7 + 20);
}

TEST_F(ListScheduling, TheNextJobRunsAheadWhereNothingElseIsReady) {
  // A forward interleaved with the backward before it.
  const std::string tasks =
      "all_reduce(-> rw x[0:9]) {group=0} comm comm mb=0 vs=0\n"
      "copy(x[0:9] -> y[0:9]) compute dgrad mb=0 vs=0\n"
      "copy(x[20:28] -> y[20:28]) compute forward mb=1 vs=0\n"
      "copy(x[30:38] -> y[30:38]) compute dgrad mb=1 vs=0\n";
  programs_ = {rank_program(0, 2, tasks), rank_program(1, 2, tasks)};
  EXPECT_THAT(order({.lookahead_jobs = 0}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order({.lookahead_jobs = 1}), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(schedule({.lookahead_jobs = 1})->step_ns, 9 + 9 + 8);
}

TEST_F(ListScheduling, WhatIsNeededFirstIsSentFirst) {
  // Both sums are ready at once: the second holds up compute.
  const std::string tasks =
      "all_reduce(-> rw x[0:9]) {group=0} comm comm mb=0 vs=0\n"
      "all_reduce(-> rw x[20:25]) {group=0} comm comm mb=0 vs=0\n"
      "copy(x[20:25] -> y[20:25]) compute forward mb=0 vs=0\n"
      "copy(y[20:25] -> y[30:35]) compute forward mb=0 vs=0\n"
      "copy(x[0:9] -> y[0:9]) compute optimizer\n";
  programs_ = {rank_program(0, 2, tasks), rank_program(1, 2, tasks)};
  const std::vector<uint32_t> first = order({}, 0);
  EXPECT_THAT(first, ElementsAre(1, 0, 2, 3, 4));
  EXPECT_EQ(order({}, 1), first);
}

TEST_F(ListScheduling, GradientsWhoseSumsTakeLongAreMadeFirst) {
  // Three sums of 50 ns, one after the other: longer than the compute that is left.
  const std::string tasks =
      "copy(x[200:210] -> y[200:210]) compute wgrad mb=0 vs=0\n"
      "all_reduce(-> rw y[200:250]) {group=0} comm comm\n"
      "copy(x[0:20] -> y[0:20]) compute dgrad mb=0 vs=0\n"
      "copy(x[300:310] -> y[300:310]) compute wgrad mb=0 vs=0\n"
      "all_reduce(-> rw y[300:350]) {group=0} comm comm\n"
      "copy(y[0:20] -> y[20:40]) compute dgrad mb=0 vs=0\n"
      "copy(x[400:410] -> y[400:410]) compute wgrad mb=0 vs=0\n"
      "all_reduce(-> rw y[400:450]) {group=0} comm comm\n"
      "copy(y[20:40] -> y[40:60]) compute dgrad mb=0 vs=0\n";
  programs_ = {rank_program(0, 2, tasks), rank_program(1, 2, tasks)};
  EXPECT_EQ(order()[0], 0U);
  EXPECT_EQ(order()[1], 1U);  // beside what follows
  EXPECT_EQ(schedule()->step_ns, 10 + 3 * 50);
}

TEST_F(ListScheduling, GradientsAreAddedUpInTheOrderOfTheProgram) {
  const std::string sums =
      "all_reduce(-> rw x[0:90]) {group=0} comm comm mb=0 vs=0\n"
      "copy(x[0:90] -> y[0:90]) compute dgrad mb=1 vs=0\n"
      "copy(x[200:230] -> y[300:330]) compute wgrad mb=0 vs=0\n"
      "accumulate(x[240:250] -> rw y[300:310]) compute wgrad mb=1 vs=0\n"
      "accumulate(x[200:230] -> rw y[300:330]) compute wgrad mb=2 vs=0\n";
  programs_ = {rank_program(0, 2, sums), rank_program(1, 2, sums)};
  EXPECT_THAT(order(), ElementsAre(0, 2, 3, 4, 1));
}

// Two jobs of 40 elements each; a wgrad frees what the first has made.
constexpr const char* kTwoJobs =
    "copy(x[0:40] -> d) compute dgrad mb=0 vs=0\n"
    "copy(d -> y[0:40]) compute wgrad mb=0 vs=0\n"
    "copy(x[0:30] -> c) compute dgrad mb=1 vs=0\n"
    "copy(c -> y[100:130]) compute dgrad mb=1 vs=0\n";

TEST_F(ListScheduling, WeightGradientsGoFirstWhereMemoryIsShort) {
  programs_ = {rank_program(0, 1, kTwoJobs)};
  EXPECT_EQ(peak_live_bytes(programs_[0]), 160);
  EXPECT_THAT(order(), ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(order({.live_bytes_limit = {280}}), ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(order({.live_bytes_limit = {279}}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order({.live_bytes_limit = {160}}), ElementsAre(0, 1, 2, 3));
  EXPECT_FALSE(schedule({.live_bytes_limit = {159}}));
}

TEST_F(ListScheduling, NothingRunsAheadThatWouldKeepTheJobInFrontFromItsEnd) {
  // While a is on its way, b and c could be made ahead; d of the first job needs 160 bytes then.
  const std::string tasks =
      "copy(x[0:10] -> a) compute forward mb=0 vs=0\n"
      "all_reduce(-> rw a) {group=0} comm comm mb=0 vs=0\n"
      "copy(a -> x[500:510]) compute forward mb=0 vs=0\n"
      "copy(x[500:540] -> d) compute forward mb=0 vs=0\n"
      "copy(d -> y[0:40]) compute forward mb=0 vs=0\n"
      "copy(x[0:20] -> b) compute forward mb=1 vs=0\n"
      "copy(b -> y[100:120]) compute forward mb=1 vs=0\n";
  programs_ = {rank_program(0, 2, tasks), rank_program(1, 2, tasks)};
  model_.latency_ns = 50;
  EXPECT_THAT(order({.live_bytes_limit = {240, 240}}), ElementsAre(0, 1, 5, 6, 2, 3, 4));
  EXPECT_THAT(order({.live_bytes_limit = {239, 239}}), ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST_F(ListScheduling, GoesOnWhereOtherStreamsHaveTakenTheMemory) {
  // The other stream fills c; what compute does next takes nothing, and the weight gradient, which
  // frees c, comes after that.
  programs_ = {rank_program(0, 1,
                            "copy(x[0:30] -> c) comm comm mb=0 vs=0\n"
                            "copy(x[100:110] -> y[100:110]) compute dgrad mb=0 vs=0\n"
                            "copy(c -> y[0:30]) compute wgrad mb=0 vs=0\n"
                            "copy(x[0:10] -> a) compute dgrad mb=0 vs=0\n")};
  EXPECT_THAT(order({.live_bytes_limit = {100}}), ElementsAre(0, 1, 2, 3));
}

TEST_F(ListScheduling, UsesMeasuredDurations) {
  programs_ = {rank_program(0, 1, "copy(x[0:10] -> y[0:10]) compute forward\n")};
  EXPECT_EQ(schedule()->step_ns, 10);
  const RankPrograms ranks = one_program_per_rank(programs_);
  EXPECT_EQ(ListScheduler(ranks, model_, {{25}}).run()->step_ns, 25);
  EXPECT_EQ(ListScheduler(ranks, model_, {{-1}}).run()->step_ns, 10);
}

TEST_F(ListScheduling, SaysWhatDoesNotFitTogether) {
  programs_ = {rank_program(0, 2, "all_reduce(-> rw x[0:9]) {group=0} comm comm\n"),
               rank_program(1, 2, "")};
  EXPECT_THAT(message_of<InternalError>([&] { schedule(); }),
              HasSubstr("rank 0 makes 1 calls, rank 1 0"));
}

bool is_valid_order(const Program& program, const std::vector<TaskId>& order) {
  std::vector<size_t> place(program.tasks.size(), SIZE_MAX);
  for (size_t i = 0; i < order.size(); ++i) {
    place[order[i].index()] = i;
  }
  const DependencyGraph graph = build_dependencies(program);
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i] == SIZE_MAX || std::ranges::any_of(graph.of(TaskId(i)), [&](TaskId before) {
          return place[before.index()] >= place[i];
        })) {
      return false;
    }
  }
  return order.size() == place.size();
}

// Groups over any ranks on any streams: whatever waits for what, the orders are permutations that
// keep dependencies, the same every time, and nobody waits for ever.
TEST(ListSchedulingOfRandomRanks, KeepsDependenciesAndOneOrder) {
  std::vector<uint64_t> seeds(150);
  std::iota(seeds.begin(), seeds.end(), 0U);
  for (const uint64_t seed : thinned(seeds, 10)) {
    SCOPED_TRACE(seed);
    const std::vector<Program> programs = random_ranks(seed);
    const RankPrograms ranks = one_program_per_rank(programs);
    const FixedCosts model(small_cluster(4, 2));
    const auto schedule = list_schedule(ranks, model);
    ASSERT_TRUE(schedule);
    std::vector<Program> reordered;
    for (size_t i = 0; i < programs.size(); ++i) {
      ASSERT_TRUE(is_valid_order(programs[i], schedule->orders[i]));
      reordered.push_back(reorder_tasks(programs[i], schedule->orders[i]));
    }
    EXPECT_EQ(list_schedule(ranks, model)->orders, schedule->orders);
    // Collectives one after the other in program order, whatever their streams.
    EXPECT_TRUE(verify_ranks(one_program_per_rank(reordered),
                             {.one_order_of_collectives = true, .one_order_of_messages = false})
                    .empty());
  }
}

}  // namespace
}  // namespace braid
