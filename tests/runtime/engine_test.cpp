#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/validate.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

double largest_difference(const ModelState& a, const ModelState& b) {
  double largest = 0;
  for (size_t unit = 0; unit < a.weights.size(); ++unit) {
    for (size_t i = 0; i < a.weights[unit].size(); ++i) {
      largest =
          std::max(largest, std::abs(static_cast<double>(a.weights[unit][i]) - b.weights[unit][i]));
    }
  }
  return largest;
}

TEST(Engine, LearnsASimpleLanguage) {
  const Outcome outcome = run(small_config(), 60);
  EXPECT_NEAR(outcome.losses.front(), std::log(50.0), 0.2);  // nothing is known yet
  EXPECT_LT(outcome.losses.back(), 0.6 * outcome.losses.front());
}

TEST(Engine, TwoRunsAreBitwiseEqual) {
  RunConfig config = small_config();
  config.parallel.ranks = 2;
  expect_same_bits(run(config, 5), run(config, 5));
}

TEST(Engine, OverlapChangesNoBit) {
  RunConfig config = small_config();
  config.parallel.ranks = 2;
  config.overlap.mode = "off";
  const Outcome off = run(config, 5);
  config.overlap.mode = "auto";
  expect_same_bits(run(config, 5), off);
  config.overlap.mode = "manual";
  config.overlap.overlap_grad_reduce = true;
  expect_same_bits(run(config, 5), off);
}

// How the global batch is cut into ranks and microbatches changes the order of sums only. After one
// step AdamW moves a weight by at most the learning rate in a direction that a sign decides, so
// that only gradients near zero may differ visibly.
TEST(Engine, RanksAndMicrobatchesChangeRoundingOnly) {
  const Outcome one = run(small_config(), 1);
  for (const int64_t ranks : {2, 4}) {
    RunConfig config = small_config();
    config.parallel.ranks = ranks;
    const Outcome many = run(config, 1);
    EXPECT_NEAR(many.losses.front(), one.losses.front(), 1e-5);
    EXPECT_NEAR(many.grad_norms.front(), one.grad_norms.front(), 1e-4 * one.grad_norms.front());
    EXPECT_LT(largest_difference(many.state, one.state), 1e-4);
  }
}

TEST(Engine, PlannedBytesAreAllocatedBytes) {
  RunConfig config = resolved(small_config());
  RunPlan plan = plan_run(resolve_run(config, 50));
  const int64_t planned = plan.ranks[0].memory.peak_bytes();
  const Engine engine(std::move(plan), {});
  EXPECT_EQ(engine.allocated_bytes(0), planned);
}

/// The small configuration on other ranks.
RunConfig laid_out(int64_t tensor, int64_t pipeline, int64_t data, const std::string& shard) {
  RunConfig config = small_config();
  config.parallel.ranks = tensor * pipeline * data;
  config.parallel.tensor = tensor;
  config.parallel.pipeline = pipeline;
  config.parallel.shard = shard;
  return resolved(config);
}

/// Sharded weights, of which the first units of a rank stay whole.
RunConfig with_whole_units(RunConfig config, int64_t units) {
  config.overlap.mode = "manual";
  config.overlap.overlap_param_gather = true;
  config.overlap.param_gather_whole_units = units;
  return config;
}

std::vector<RunConfig> some_layouts() {
  return {laid_out(1, 1, 1, "none"),       laid_out(2, 1, 1, "none"),
          laid_out(1, 2, 2, "optimizer"),  laid_out(2, 1, 2, "gradients"),
          laid_out(1, 1, 4, "parameters"), with_whole_units(laid_out(1, 2, 2, "parameters"), 1)};
}

TEST(Engine, StateSurvivesTheDevices) {
  for (const RunConfig& config : some_layouts()) {
    Engine engine(plan_run(resolve_run(config, 50)), {});
    const ParameterLayout& layout = engine.plan().layout;
    ModelState state = initial_state(layout, engine.plan().run.model, 9);
    std::mt19937 random(9);
    for (auto* const part : {&state.exp_avg, &state.exp_avg_sq}) {
      for (const Parameter& parameter : layout.parameters) {
        const std::span<float> values = elements_of(layout, parameter.name, *part);
        std::generate(values.begin(), values.end(), [&] { return static_cast<float>(random()); });
      }
    }
    engine.write_state(state);
    const ModelState read = state_of(engine);
    EXPECT_EQ(read.weights, state.weights);
    EXPECT_EQ(read.exp_avg, state.exp_avg);
    EXPECT_EQ(read.exp_avg_sq, state.exp_avg_sq);
  }
}

/// Of weights after some steps.
double evaluated(const RunConfig& config) {
  Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = config.train.microbatch}});
  const StepBatch batch = *loader.next();
  for (int64_t step = 1; step <= 3; ++step) {
    engine.train_step(batch, config.optimizer, 1e-2, step);
  }
  return engine.evaluate(batch).loss;
}

TEST(Engine, AnEvaluationReadsUnitsThatStayWhole) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    RunConfig config = laid_out(1, 1, 2, "parameters");
    config.train.dtype = dtype;
    const double sharded = evaluated(config);
    for (const int64_t units : {1, 2, 9}) {
      EXPECT_EQ(evaluated(with_whole_units(config, units)), sharded) << dtype << " " << units;
    }
  }
}

// What a checkpoint holds is what one rank would hold, so a run may go on under any other layout.
TEST(Engine, AnyLayoutGoesOnFromTheStateOfAnyOther) {
  const Outcome alone = run(laid_out(1, 1, 1, "none"), 3);
  for (const RunConfig& first : thinned(some_layouts(), 3)) {
    const Outcome begun = run(first, 2);
    for (const RunConfig& second : some_layouts()) {
      const Outcome ended = run(second, 1, {}, {.state = &begun.state, .steps_done = 2});
      EXPECT_NEAR(ended.losses.front(), alone.losses.back(), 1e-5);
      EXPECT_LT(largest_difference(ended.state, alone.state), 1e-3);
    }
  }
}

/// A step in which rank 1 ends before its first call: the others miss it.
TEST(Engine, MissingRankEndsTheStepWithinTheTimeout) {
  RunConfig config = small_config();
  config.parallel.ranks = 2;
  RunPlan plan = plan_run(resolve_run(resolved(config), 50));
  Program& late = plan.ranks[1].programs[kTrainProgram];
  const auto first_call = std::find_if(late.tasks.begin(), late.tasks.end(), [&](const Task& task) {
    return late.streams[task.stream.index()].kind == StreamKind::kComm;
  });
  ASSERT_NE(first_call, late.tasks.end());
  late.tasks.erase(first_call, late.tasks.end());
  Engine engine(std::move(plan), {.timeout_ns = 30'000'000});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = 2, .num_microbatches = 2, .microbatch = 2}});
  const StepBatch batch = *loader.next();
  EXPECT_THAT(message_of<DeviceError>([&] { engine.train_step(batch, config.optimizer, 1e-3, 1); }),
              AllOf(HasSubstr("rank 0"), HasSubstr("waited 0.03 s in group"),
                    HasSubstr("for rank 1; rank 1: no call yet")));
}

/// A small engine after one step with NaN in one weight.
struct PoisonedStep {
  RunConfig config;
  std::optional<Engine> engine;
  ModelState before;
  StepResult result;

  explicit PoisonedStep(const std::string& dtype, const std::string& parameter, float poison) {
    config = small_config();
    config.train.dtype = dtype;
    config.parallel.ranks = 2;
    config = resolved(config);
    engine.emplace(plan_run(resolve_run(config, 50)), EngineOptions{.poison_step_arena = true});
    before = initial_state(engine->plan().layout, engine->plan().run.model, 5);
    elements_of(engine->plan().layout, parameter, before.weights)[37] = poison;
    engine->write_state(before);
    const NoisySequences source(16);
    BatchLoader loader(source, {.shape = {.num_ranks = 2, .num_microbatches = 2, .microbatch = 2}});
    result = engine->train_step(*loader.next(), config.optimizer, 1e-3, 1);
  }
};

TEST(Engine, AStepWithANanIsSkippedAndSaysWhereWhenItRunsAgain) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    PoisonedStep poisoned(dtype, "layers.1.mlp.fc2.weight", std::nanf(""));
    EXPECT_TRUE(poisoned.result.skipped);
    EXPECT_TRUE(std::isnan(poisoned.result.loss));
    ModelState after = state_of(*poisoned.engine);  // NaN is unequal to itself
    for (ModelState* const state : {&poisoned.before, &after}) {
      elements_of(poisoned.engine->plan().layout, "layers.1.mlp.fc2.weight", state->weights)[37] =
          0;
    }
    EXPECT_EQ(after.weights, poisoned.before.weights);
    EXPECT_EQ(after.exp_avg, poisoned.before.exp_avg);
    EXPECT_EQ(after.exp_avg_sq, poisoned.before.exp_avg_sq);
    EXPECT_THAT(
        message_of<DeviceError>([&] { poisoned.engine->check_last_step(); }),
        ContainsRegex("^rank [01], stream compute, task [0-9]+ \\(linear .*layers.1.mlp.fc2 "
                      "mb=0.*\\): wrote NaN or infinity to element 0 of buffer m0.layers.1"));
  }
}

TEST(Engine, AHealthyStepPassesTheChecks) {
  for (const std::string family : {"llama", "gpt2"}) {
    RunConfig config = small_config();
    config.model.family = family;
    config.model.kv_heads = family == "llama" ? 2 : 4;
    config.parallel.ranks = 2;
    config = resolved(config);
    Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
    engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
    const NoisySequences source(16);
    BatchLoader loader(source, {.shape = {.num_ranks = 2, .num_microbatches = 2, .microbatch = 2}});
    const StepBatch batch = *loader.next();
    EXPECT_FALSE(engine.train_step(batch, config.optimizer, 0.0, 1).skipped);
    EXPECT_NO_THROW(engine.check_last_step());
  }
}

TEST(Engine, Bfloat16TrainsWithFloat32MainWeights) {
  RunConfig config = small_config();
  config.train.dtype = "bfloat16";
  const Outcome outcome = run(config, 60);
  EXPECT_LT(outcome.losses.back(), 0.65 * outcome.losses.front());
  const Outcome full = run(small_config(), 1);
  EXPECT_NEAR(run(config, 1).losses.front(), full.losses.front(),
              0.02);  // 8 bits of mantissa in weights and activations
}

}  // namespace
}  // namespace braid
