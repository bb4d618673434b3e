#include "sim/step_clock.h"

#include <gmock/gmock.h>

#include "ir/text.h"
#include "sim/fixed_costs.h"

namespace braid {
namespace {

constexpr double kMs = 1e6;

DeviceSpec h200() {
  return *find_device("h200");
}

TEST(StepClock, OfProductsAloneIsTheirs) {
  EXPECT_EQ(step_clock(h200(), {.products = 100 * kMs}), 1);
}

TEST(StepClock, GrowsWithWhatNeedsLessPower) {
  const double products = 100 * kMs;
  const double with_attention = step_clock(h200(), {.products = products, .attention = 20 * kMs});
  const double with_more = step_clock(h200(), {.products = products, .attention = 40 * kMs});
  EXPECT_GT(with_attention, 1.005);
  EXPECT_GT(with_more, with_attention + 0.005);
  EXPECT_GT(step_clock(h200(), {.products = products, .memory_bound = 20 * kMs}), 1.005);
  // A wait needs less power than a kernel.
  EXPECT_GT(step_clock(h200(), {.products = products, .waiting = 5 * kMs}),
            step_clock(h200(), {.products = products, .memory_bound = 5 * kMs}));
}

TEST(StepClock, HasALimitWhateverWaits) {
  DeviceSpec device = h200();
  const ComputeTimes waits{.products = 10 * kMs, .waiting = 1000 * kMs};
  EXPECT_NEAR(step_clock(device, waits), device.most_clock, 1e-3);
  EXPECT_LE(step_clock(device, waits), device.most_clock);
  device.most_clock = 1.2;
  EXPECT_NEAR(step_clock(device, waits), 1.2, 1e-3);
}

TEST(StepClock, IsOneWhereNothingIsKnown) {
  EXPECT_EQ(find_device("a100")->most_clock, 1);
  EXPECT_EQ(find_device("b200")->most_clock, 1);
  EXPECT_EQ(step_clock(*find_device("a100"), {.products = kMs, .waiting = 100 * kMs}), 1);
}

TEST(StepClock, ChangesWhatTheClockBounds) {
  EXPECT_EQ(clock_change(OpFamily::kGemm, 1), 1);
  EXPECT_EQ(clock_change(OpFamily::kGemm, 1.25), 0.8);
  EXPECT_EQ(clock_change(OpFamily::kMemoryBound, 1.25), 1);
  // Attention alone has a higher clock than products.
  EXPECT_GT(clock_change(OpFamily::kAttention, 1), 1.1);
  EXPECT_LT(clock_change(OpFamily::kAttention, 1.25), 1);
}

Program rank_program(int rank, const std::string& tasks) {
  return parse_program(fmt::format("program step rank={} ranks=2 events=0\n", rank) +
                       "stream compute kind=compute priority=0\n"
                       "stream comm kind=comm priority=1\n"
                       "group data kind=data ranks=0,1\n"
                       "buffer x f32 [1000] io persistent device\n"
                       "buffer w f32 [1,1] io persistent device\n"
                       "buffer y f32 [1000] io persistent device\n" +
                       tasks + "all_reduce(y) {group=0} comm comm\n");
}

std::string product(int ns) {
  return fmt::format(
      "linear(x[0:{0}] [{0},1], w -> y[0:{0}] [{0},1]) {{has_bias=false, adds_bias=true}} compute "
      "forward\n",
      ns);
}

std::string copy(int ns) {
  return fmt::format("copy(x[0:{0}] -> y[0:{0}]) compute forward\n", ns);
}

TEST(ComputeTimes, AreSumsByKindAndWhatIsLeft) {
  const Program program = rank_program(0, product(100) + copy(30) + product(50));
  const std::vector<TaskTimes> times = {{.start_ns = 0, .end_ns = 100},
                                        {.start_ns = 100, .end_ns = 130},
                                        {.start_ns = 200, .end_ns = 250},
                                        {.start_ns = 0, .end_ns = 400}};
  const ComputeTimes sums = compute_times(program, times, 400);
  EXPECT_EQ(sums.products, 150);
  EXPECT_EQ(sums.memory_bound, 30);
  EXPECT_EQ(sums.attention, 0);
  EXPECT_EQ(sums.waiting, 220);
}

// The rank with the shorter product waits, and runs at a higher clock.
TEST(RankClocks, AreThoseOfEachRanksMix) {
  const std::vector<Program> programs = {rank_program(0, product(900)),
                                         rank_program(1, product(500))};
  const RankPrograms ranks = one_program_per_rank(programs);
  const FixedCosts model(small_cluster(2, 8));
  const MatchedPrograms matched(ranks, model);
  const SimResult before = simulate(matched, model);
  const std::vector<double> clocks = rank_clocks(h200(), ranks, before);
  ASSERT_EQ(clocks.size(), 2U);
  EXPECT_LT(clocks[0], clocks[1]);
  const SimResult after = simulate(matched, model, {}, 1.0, {.rank_clock = clocks});
  for (const SimRank& rank : after.ranks) {
    const double alone = rank.rank == 0 ? 900 : 500;
    EXPECT_NEAR(static_cast<double>(rank.compute_ns),
                alone / clocks[static_cast<size_t>(rank.rank)], 1);
  }
  EXPECT_THAT(rank_clocks(*find_device("a100"), ranks, before), testing::IsEmpty());
}

}  // namespace
}  // namespace braid
