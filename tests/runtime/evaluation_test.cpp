#include "runtime/evaluation.h"

#include <gtest/gtest.h>

#include "support/engine_runs.h"

namespace braid {
namespace {

TEST(Evaluation, LeavesTheWeightsAlone) {
  const RunConfig config = resolved(small_config());
  Engine engine(plan_run(resolve_run(config, 50)), {});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(16);
  BatchLoader loader(source, {.shape = {.num_ranks = 1, .num_microbatches = 4, .microbatch = 2}});
  const StepBatch batch = *loader.next();
  const double before = engine.evaluate(batch).loss;
  EXPECT_EQ(engine.evaluate(batch).loss, before);
  const StepResult step = engine.train_step(batch, config.optimizer, 1e-3, 1);
  EXPECT_NEAR(step.loss, before, 1e-5);
  EXPECT_LT(engine.evaluate(batch).loss, before);
}

// Each rank's loss is of its own tokens; the sum is that of one rank.
TEST(Evaluation, IsOfAllRanks) {
  const auto evaluated = [](int64_t data, int64_t context, int64_t tensor, int64_t pipeline) {
    RunConfig config = small_config();
    config.parallel.ranks = data * context * tensor * pipeline;
    config.parallel.context = context;
    config.parallel.tensor = tensor;
    config.parallel.pipeline = pipeline;
    validate(config);
    config = resolved(config);
    Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
    engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
    const NoisySequences source(config.train.sequence);
    BatchLoader loader(source, {.shape = {.num_ranks = data,
                                          .num_microbatches = num_microbatches(config),
                                          .microbatch = config.train.microbatch}});
    return engine.evaluate(*loader.next()).loss;
  };
  const double alone = evaluated(1, 1, 1, 1);
  EXPECT_NEAR(evaluated(2, 2, 1, 1), alone, 1e-6);
  EXPECT_NEAR(evaluated(1, 1, 2, 2), alone, 1e-6);
  EXPECT_NEAR(evaluated(2, 1, 1, 2), alone, 1e-6);
}

TEST(Evaluation, AddsUpFiguresOfPairs) {
  const std::vector<float> figures{1, 2, 3, 4, 5, 10, 20, 30, 40, 50};
  const PreferenceRecord sums = preference_of(figures);
  EXPECT_EQ(sums.chosen_reward, 11);
  EXPECT_EQ(sums.rejected_reward, 22);
  EXPECT_EQ(sums.accuracy, 33);
  EXPECT_EQ(sums.chosen_logp, 44);
  EXPECT_EQ(sums.rejected_logp, 55);
}

}  // namespace
}  // namespace braid
