#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/engine_runs.h"

namespace braid {
namespace {

constexpr double kDecay = 0.75;

RunConfig averaging() {
  RunConfig config = small_config();
  config.optimizer.ema = kDecay;
  config.optimizer.clip_norm = 0;  // the norm's sum, and so its scale, depends on the shards
  return config;
}

using UnitArrays = std::vector<std::vector<float>>;

/// Averages over the weights that runs of one step, two, ... leave, in double precision.
std::vector<std::vector<double>> expected_averages(const RunConfig& config, int64_t steps) {
  RunSpec spec = resolve_run(resolved(config), 50);
  const RunPlan plan = plan_run(spec);
  const UnitArrays start = initial_state(plan.layout, plan.run.model, 5).weights;
  std::vector<std::vector<double>> averages;
  for (const std::vector<float>& unit : start) {
    averages.emplace_back(unit.begin(), unit.end());
  }
  for (int64_t step = 1; step <= steps; ++step) {
    const UnitArrays weights = run(config, step).state.weights;
    for (size_t unit = 0; unit < averages.size(); ++unit) {
      for (size_t i = 0; i < averages[unit].size(); ++i) {
        averages[unit][i] =
            kDecay * averages[unit][i] + (1 - kDecay) * static_cast<double>(weights[unit][i]);
      }
    }
  }
  return averages;
}

/// Weights are below 4, so that each of three roundings per step is 2^-23 at most.
void expect_averages(const RunConfig& config, int64_t steps) {
  const Outcome outcome = run(config, steps);
  const std::vector<std::vector<double>> expected = expected_averages(config, steps);
  double worst = 0;
  double farthest = 0;
  for (size_t unit = 0; unit < expected.size(); ++unit) {
    for (size_t i = 0; i < expected[unit].size(); ++i) {
      const auto average = static_cast<double>(outcome.state.ema[unit][i]);
      ASSERT_FALSE(std::isnan(average));
      worst = std::max(worst, std::abs(average - expected[unit][i]));
      farthest = std::max(farthest,
                          std::abs(average - static_cast<double>(outcome.state.weights[unit][i])));
    }
  }
  EXPECT_LT(worst, 3.0 * static_cast<double>(steps) * 0x1p-23);
  EXPECT_GT(farthest, 1e-4) << "averages are the weights";
}

TEST(Ema, IsTheAverageOfTheWeightsOfAllLayouts) {
  const std::vector<std::pair<const char*, void (*)(RunConfig&)>> layouts = {
      {"one rank", [](RunConfig&) {}},
      {"tensor", [](RunConfig& c) { c.parallel.ranks = c.parallel.tensor = 2; }},
      {"pipeline",
       [](RunConfig& c) {
         c.parallel.ranks = c.parallel.pipeline = 2;
         c.model.tied_embeddings = true;
       }},
      {"context", [](RunConfig& c) { c.parallel.ranks = c.parallel.context = 2; }},
      {"replicas",
       [](RunConfig& c) {
         c.parallel.ranks = 4;
         c.parallel.shard = "gradients";
         c.parallel.shard_replicas = 2;
         c.parallel.shard_over_replicas = true;
       }},
  };
  for (const auto& [name, change] : layouts) {
    for (const std::string dtype : {"float32", "bfloat16"}) {
      SCOPED_TRACE(std::string(name) + " " + dtype);
      RunConfig config = averaging();
      config.train.dtype = dtype;
      change(config);
      expect_averages(config, 3);
    }
  }
}

// Each rank has one microbatch: then main grads have the same bits in all kinds of shards.
TEST(Ema, HasTheSameBitsInAnyShardAndOverlapAndChangesNoWeight) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    RunConfig config = averaging();
    config.train.dtype = dtype;
    config.parallel.ranks = config.parallel.data = 4;
    config.overlap.mode = "off";
    RunConfig plain = config;
    plain.optimizer.ema = 0;
    const Outcome without = run(plain, 3);
    const Outcome copies = run(config, 3);
    EXPECT_EQ(copies.state.weights, without.state.weights);
    for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
      for (const std::string mode : {"off", "auto"}) {
        SCOPED_TRACE(dtype + " " + shard + " " + mode);
        config.parallel.shard = shard;
        config.overlap.mode = mode;
        const Outcome outcome = run(config, 3);
        EXPECT_EQ(outcome.state.weights, copies.state.weights);
        EXPECT_EQ(outcome.state.ema, copies.state.ema);
      }
    }
  }
}

TEST(Ema, IsOfEveryOptimizer) {
  for (const std::string name : {"lion", "sgd", "muon"}) {
    SCOPED_TRACE(name);
    RunConfig config = averaging();
    config.optimizer.name = name;
    config.parallel.ranks = 2;
    config.parallel.shard = "parameters";
    expect_averages(config, 2);
  }
}

TEST(Ema, OfFp8WeightsIsOfMainWeights) {
  RunConfig config = averaging();
  config.model.width = 128;
  config.model.heads = 8;
  config.model.ffn = 256;
  config.train.dtype = "bfloat16";
  config.train.fp8 = "tensor";
  config.parallel.ranks = 2;
  config.parallel.shard = "parameters";
  expect_averages(config, 2);
}

TEST(Ema, BeginsWithTheWeightsOfAStateWithoutAverages) {
  RunConfig plain = averaging();
  plain.optimizer.ema = 0;
  const Outcome before = run(plain, 2);
  const Outcome after = run(averaging(), 1, {}, {.state = &before.state, .steps_done = 2});
  for (size_t unit = 0; unit < after.state.ema.size(); ++unit) {
    for (size_t i = 0; i < after.state.ema[unit].size(); ++i) {
      const double from = before.state.weights[unit][i];
      const double to = after.state.weights[unit][i];
      ASSERT_NEAR(after.state.ema[unit][i], from + (1 - kDecay) * (to - from), 0x1p-22);
    }
  }
}

}  // namespace
}  // namespace braid
