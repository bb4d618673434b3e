#include "plan/step_range.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "config/validate.h"
#include "plan/describe_simulation.h"
#include "sim/analytic_model.h"
#include "sim/device_file.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig small_run() {
  RunConfig config;
  config.model.layers = 4;
  config.model.width = 1024;
  config.model.heads = 8;
  config.model.vocabulary = 1024;
  config.train.sequence = 1024;
  config.train.microbatch = 2;
  config.train.global_batch = 32;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = 16;
  config.parallel.pipeline = 2;
  config.data.train = "unused";
  config.logging.run_folder = "unused";
  validate(config);
  return resolved(config);
}

class StepRangeTest : public testing::Test {
 protected:
  std::unique_ptr<CostModel> model_of(const RangeSpec& range, double kernels_range) const {
    Cluster cluster = parse_cluster("h100x16");
    cluster.device.range = range;
    cluster.device.stack.kernels_range = kernels_range;
    return make_analytic_model(cluster);
  }
  StepRange range_of(const RangeSpec& range, double kernels_range = 0) const {
    const auto model = model_of(range, kernels_range);
    return step_range(SimulatedRun(run_, *model));
  }

  static constexpr RangeSpec kNone{.kernels = 0,
                                   .node_links = 0,
                                   .network_links = 0,
                                   .congestion = 0,
                                   .device_sd = 0,
                                   .step_sd = 0};
  const RunSpec run_ = resolve_run(small_run(), 0);
};

TEST_F(StepRangeTest, IsThePriceWithoutSources) {
  const StepRange range = range_of(kNone);
  EXPECT_GT(range.middle_ns, 0);
  EXPECT_EQ(range.low_ns, range.middle_ns);
  EXPECT_EQ(range.high_ns, range.middle_ns);
  EXPECT_EQ(range.width(), 0);
}

TEST_F(StepRangeTest, SourcesAddUpAsSquares) {
  RangeSpec both = kNone;
  both.step_sd = 0.03;
  const StepRange jitter = range_of(both);
  EXPECT_NEAR(jitter.width(), 1.03 / 0.97 - 1, 1e-6);
  const StepRange kernels = range_of(kNone, 0.1);
  const StepRange all = range_of(both, 0.1);
  const auto above = [](const StepRange& it) {
    return static_cast<double>(it.high_ns - it.middle_ns);
  };
  EXPECT_GT(above(kernels), 0.05 * static_cast<double>(kernels.middle_ns));
  EXPECT_NEAR(above(all), std::hypot(above(jitter), above(kernels)), 2);
}

TEST_F(StepRangeTest, WhatGrowsWithTheClusterOnlyMakesStepsLonger) {
  RangeSpec range = kNone;
  range.device_sd = 0.02;
  range.congestion = 0.1;
  const StepRange found = range_of(range);
  EXPECT_EQ(found.low_ns, found.middle_ns);
  EXPECT_GT(found.high_ns, found.middle_ns);
  EXPECT_EQ(found.sources.front().what, "slowest device");
}

TEST_F(StepRangeTest, IsToldInWordsAndData) {
  const auto model = model_of({}, 0.05);
  const SimulatedRun run(run_, *model);
  const SimulationDetails details{
      .range = step_range(run),
      .samples = SampledSteps{.count = 3, .seed = 7, .median_ns = 1'000'000, .p90_ns = 2'000'000},
      .slow = SlowStep{.parts = {.node = 2, .link = 1}, .step_ns = 2 * run.step_ns()}};
  const std::string text = describe_simulation(run, details);
  EXPECT_THAT(text, HasSubstr("\nrange     "));
  EXPECT_THAT(text, HasSubstr("): kernels -"));
  EXPECT_THAT(text, HasSubstr("\nsamples   median 1.00 ms, 90% below 2.00 ms; 3 steps of "
                              "different machines, seed 7\n"));
  EXPECT_THAT(text, HasSubstr("(+100.0%) if compute takes 2 times as long on one node\n"));
  const std::string json = simulation_json(run, details);
  for (const char* key : {"\"range\"", "\"low_ns\"", "\"samples\"", "\"p90_ns\"", "\"slow\""}) {
    EXPECT_THAT(json, HasSubstr(key));
  }
}

TEST_F(StepRangeTest, ASlowNodeHoldsUpTheOthers) {
  const auto model = model_of(kNone, 0);
  const SimulatedRun run(run_, *model);
  const auto step = static_cast<double>(run.step_ns());
  EXPECT_EQ(step_ns_with(run, {}), run.step_ns());
  const auto slow = static_cast<double>(step_ns_with(run, {.node = 2, .link = 1}));
  EXPECT_GT(slow, 1.2 * step);
  EXPECT_LE(slow, 2 * step);
  EXPECT_GT(step_ns_with(run, {.node = 1, .link = 50}), run.step_ns());
}

TEST_F(StepRangeTest, SamplesFollowTheSeedAlone) {
  const auto model = model_of({}, 0);
  const SimulatedRun run(run_, *model);
  const SampledSteps one = sample_steps(run, 21, 5, 1);
  const SampledSteps two = sample_steps(run, 21, 5, 2);
  EXPECT_EQ(one.median_ns, two.median_ns);
  EXPECT_EQ(one.p90_ns, two.p90_ns);
  EXPECT_NE(one.median_ns, sample_steps(run, 21, 6).median_ns);
  EXPECT_LT(one.median_ns, one.p90_ns);
  // The slowest of 8 devices of a stage is 1.42 standard deviations slow.
  EXPECT_NEAR(static_cast<double>(one.median_ns) / static_cast<double>(run.step_ns()), 1.02, 0.015);
}

// Values of tables of the normal distribution, and of its order statistics (Harter, 1961).
TEST(NormalQuantile, IsThatOfTables) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-9);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963985, 1e-8);
  EXPECT_NEAR(normal_quantile(0.001), -3.090232306, 1e-8);
  EXPECT_EQ(mean_of_largest(1), 0);
  EXPECT_NEAR(mean_of_largest(2), 0.56419, 0.03);
  EXPECT_NEAR(mean_of_largest(10), 1.53875, 0.02);
  EXPECT_NEAR(mean_of_largest(100), 2.50759, 0.02);
}

}  // namespace
}  // namespace braid
