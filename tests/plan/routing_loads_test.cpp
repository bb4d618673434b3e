#include "plan/routing_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.h"
#include "config/load.h"
#include "config/validate.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using testing::HasSubstr;

RunSpec run_with(int64_t expert_ranks, int64_t ranks = 8) {
  const std::vector<std::string> keys{"logging.run_folder=none",
                                      "model.experts=16",
                                      "model.experts_per_token=2",
                                      "model.expert_ffn=64",
                                      "model.width=64",
                                      "model.layers=4",
                                      "model.heads=4",
                                      "model.kv_heads=2",
                                      "train.sequence=256",
                                      "train.microbatch=4",
                                      fmt::format("train.global_batch={}", 4 * ranks),
                                      fmt::format("parallel.ranks={}", ranks),
                                      fmt::format("parallel.expert={}", expert_ranks)};
  const RunConfig config = parse_config("", "routing_loads", keys);
  validate(config);
  return resolve_run(resolved(config), 50);
}

TEST(BusiestRank, IsComparedWithTheMean) {
  EXPECT_EQ(busiest_rank({1, 1, 1, 1}, 2), 1);
  EXPECT_EQ(busiest_rank({1, 2, 4, 1}, 2), 1.25);
  EXPECT_EQ(busiest_rank({0, 0, 0, 6}, 4), 4);
  EXPECT_EQ(busiest_rank({0, 0}, 2), 1);
}

// 8 rows, of which an expert takes 2, 3 or 1.
TEST(BusiestRank, HasTheRowsThatItsExpertsTake) {
  EXPECT_EQ(busiest_rank({1, 2, 4, 1}, 2, 1), 0.75);
  EXPECT_EQ(busiest_rank({1, 2, 4, 1}, 2, 1.5), 1);
  EXPECT_EQ(busiest_rank({1, 2, 4, 1}, 2, 0.5), 0.5);
  EXPECT_EQ(busiest_rank({1, 2, 4, 1}, 2, 2), 1.25);
}

TEST(DrawnLoads, AreMoreUnequalWithALowerConcentration) {
  const RunSpec run = run_with(8);
  const RoutingLoads almost_equal = drawn_loads(run, 1e6);
  EXPECT_NEAR(almost_equal.busiest, 1, 0.01);
  double last = almost_equal.busiest;
  for (const double concentration : {100.0, 10.0, 1.0, 0.1}) {
    const RoutingLoads loads = drawn_loads(run, concentration);
    EXPECT_GT(loads.busiest, last);
    EXPECT_GE(loads.worst, loads.busiest);
    EXPECT_LE(loads.worst, 8);
    last = loads.busiest;
  }
  EXPECT_GT(drawn_loads(run, 1e-3).busiest, 7.5);  // one expert has all rows
  EXPECT_EQ(drawn_loads(run, 1).source, "Dirichlet(1)");
  EXPECT_EQ(drawn_loads(run, 1).busiest, drawn_loads(run, 1).busiest);
}

// With A = 1 and as many ranks as experts, the mean of the largest of n shares is H_n / n.
TEST(DrawnLoads, HaveTheMeanOfTheDistribution) {
  RunSpec run = run_with(8);
  run.model.experts = 8;
  run.model.layers = LayerPattern(500, run.model.layers[0]);
  double harmonic = 0;
  for (int i = 1; i <= 8; ++i) {
    harmonic += 1.0 / i;
  }
  EXPECT_NEAR(drawn_loads(run, 1).busiest, harmonic, 0.03);
}

TEST(DrawnLoads, RefuseWhatMakesNoSense) {
  EXPECT_THAT(message_of<ConfigError>([] { drawn_loads(run_with(8), 0); }),
              HasSubstr("--routing-skew 0: must be a positive number"));
  EXPECT_THAT(message_of<ConfigError>([] { drawn_loads(run_with(1), 1); }),
              HasSubstr("--routing-skew: all ranks have all experts"));
}

ExpertRecord record(int64_t step, std::vector<int64_t> counts) {
  return {.step = step, .layer = "layers.0", .counts = std::move(counts)};
}

TEST(RecordedLoads, AreThoseOfTheLastStepWithCounts) {
  const RunSpec run = run_with(2);
  std::vector<int64_t> equal(16, 5);
  std::vector<int64_t> first(16, 0);
  first[3] = 80;
  const RoutingLoads loads = recorded_loads(
      run, {record(1, first), record(5, equal), record(5, first), record(10, {})}, "m.jsonl");
  EXPECT_EQ(loads.busiest, 1.5);
  EXPECT_EQ(loads.worst, 2);
  EXPECT_EQ(loads.source, "step 5 of m.jsonl");
  EXPECT_THAT(message_of<ConfigError>([&] { recorded_loads(run, {record(1, {})}, "m.jsonl"); }),
              HasSubstr("--routing-loads \"m.jsonl\": no record has the rows of each expert"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                recorded_loads(run, {record(1, {1, 2})}, "m");
              }),
              HasSubstr("has the rows of 2 experts, and model.experts = 16"));
}

TEST(SkewedStep, TakesAsLongAsItsBusiestRank) {
  const RunSpec run = run_with(8);
  const auto model = make_analytic_model(make_cluster(*find_device("h100"), 8));
  const SimulatedRun simulated(run, *model);
  EXPECT_EQ(simulated.step_ns_with_load(1), simulated.step_ns());
  const int64_t twice = simulated.step_ns_with_load(2);
  EXPECT_GT(twice, simulated.step_ns());
  EXPECT_GT(simulated.step_ns_with_load(4), twice);
  EXPECT_EQ(simulated.step_ns_with_load(9), simulated.step_ns_with_load(8));  // all rows
  const std::string text = describe_skewed_step(
      run, {.source = "Dirichlet(1)", .busiest = 2, .worst = 3.5}, 1'000'000, 1'250'000);
  EXPECT_THAT(text, HasSubstr("skewed    1.25 ms per step instead of 1.00 ms (+25.0%), "));
  EXPECT_THAT(text, HasSubstr("routing by Dirichlet(1): the busiest of 8 ranks has 2 times the "
                              "rows of equal loads, 3.5 in the worst layer, which needs "
                              "moe.capacity = 3.5\n"));
}

}  // namespace
}  // namespace braid
