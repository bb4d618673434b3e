#include <gtest/gtest.h>

#include "config/validate.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

RunConfig adapted_config(const std::string& shard, const std::string& dtype) {
  RunConfig config = small_config();
  config.lora.rank = 4;
  config.train.dtype = dtype;
  config.parallel.ranks = 2;
  config.parallel.shard = shard;
  validate(config);
  return resolved(config);
}

void expect_trains_adapters_alone(const RunConfig& of_run) {
  Engine engine(plan_run(resolve_run(of_run, 50)), {});
  const RunPlan& plan = engine.plan();
  ModelState before = initial_state(plan.layout, plan.run.model, 5);
  engine.write_state(before);
  const RunConfig& config = plan.run.config;
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  for (int64_t step = 1; step <= 3; ++step) {
    engine.train_step(*loader.next(), config.optimizer, 1e-2, step);
  }
  ModelState after = state_of(engine);
  for (const Parameter& parameter : plan.layout.parameters) {
    const bool same = std::ranges::equal(elements_of(plan.layout, parameter.name, before.weights),
                                         elements_of(plan.layout, parameter.name, after.weights));
    EXPECT_EQ(same, parameter.frozen) << parameter.name;
  }
}

TEST(LoraRun, ChangesEveryAdapterAndNoBitOfTheBase) {
  for (const char* const shard : {"none", "parameters"}) {
    RunConfig config = adapted_config(shard, "float32");
    expect_trains_adapters_alone(config);
    config.lora.dora = true;
    expect_trains_adapters_alone(config);
  }
}

// Once in a step, though weights that are sharded are gathered for each microbatch.
TEST(LoraRun, FindsTheLengthsOfRowsOnceInAStep) {
  for (const char* const shard : {"none", "parameters"}) {
    RunConfig config = adapted_config(shard, "bfloat16");
    config.lora.dora = true;
    config.train.global_batch *= 3;
    const RunPlan plan = plan_run(resolve_run(resolved(config), 50));
    const Program& program = plan.ranks[0].programs[kTrainProgram];
    int64_t squares = 0;
    int64_t uses = 0;
    for (const Task& task : program.tasks) {
      squares += program.spec(task).op == "adapted_squares" ? 1 : 0;
      uses += program.spec(task).op == "apply_magnitudes" ? 1 : 0;
    }
    EXPECT_EQ(squares, 4 * plan.run.model.layers.size());
    EXPECT_EQ(uses, squares * num_microbatches(plan.run.config));
    EXPECT_GT(uses, 2 * squares);
  }
}

// Of the base, a rank has its weights in the dtype of the run, and nothing else.
TEST(LoraRun, HoldsNothingButWeightsOfTheBase) {
  for (const char* const shard : {"none", "gradients"}) {
    const RunPlan plan = plan_run(resolve_run(adapted_config(shard, "bfloat16"), 50));
    for (const Buffer& buffer : plan.ranks[0].programs[kTrainProgram].buffers) {
      const bool of_adapters = buffer.name.ends_with(".lora");
      const bool is_state = buffer.role == BufferRole::kMainWeight ||
                            buffer.role == BufferRole::kMainGrad ||
                            buffer.role == BufferRole::kOptimizerState;
      EXPECT_TRUE(of_adapters || !is_state) << buffer.name;
      EXPECT_TRUE(buffer.role != BufferRole::kParam || buffer.dtype == DType::kBF16) << buffer.name;
    }
  }
}

}  // namespace
}  // namespace braid
