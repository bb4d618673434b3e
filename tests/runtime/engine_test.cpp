#include "runtime/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "config/validate.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

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
  RunPlan plan = plan_run(config, 50);
  const int64_t planned = plan.ranks[0].memory.peak_bytes();
  const Engine engine(std::move(plan), {});
  EXPECT_EQ(engine.allocated_bytes(0), planned);
}

TEST(Engine, StateSurvivesTheDevice) {
  const RunConfig config = resolved(small_config());
  Engine engine(plan_run(config, 50), {});
  const ModelState state = initial_state(engine.plan().layout, engine.plan().model, 9);
  engine.write_state(state);
  EXPECT_EQ(engine.read_state().weights, state.weights);
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

TEST(Engine, EvaluationLeavesTheWeightsAlone) {
  const RunConfig config = resolved(small_config());
  Engine engine(plan_run(config, 50), {});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().model, 5));
  const NoisySequences source(16);
  BatchLoader loader(source, {.shape = {.num_ranks = 1, .num_microbatches = 4, .microbatch = 2}});
  const StepBatch batch = *loader.next();
  const double before = engine.evaluate(batch);
  EXPECT_EQ(engine.evaluate(batch), before);
  const StepResult step = engine.train_step(batch, config.optimizer, 1e-3, 1);
  EXPECT_NEAR(step.loss, before, 1e-5);
  EXPECT_LT(engine.evaluate(batch), before);
}

}  // namespace
}  // namespace braid
