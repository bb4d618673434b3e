// Weights that only FP8 products read have no buffer in the compute dtype: their copies are made
// from main weights, with the bits that copies of bf16 weights have.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/engine_runs.h"

namespace braid {
namespace {

RunConfig config_of(int64_t ranks, const std::string& recipe, const std::string& shard) {
  RunConfig config = small_config();
  config.model.width = 128;
  config.model.ffn = 256;
  config.train.sequence = 128;
  config.train.microbatch = 1;
  config.train.global_batch = 2 * ranks;
  config.train.dtype = "bfloat16";
  config.train.fp8 = recipe;
  config.parallel.ranks = ranks;
  config.parallel.data = ranks;
  config.parallel.shard = shard;
  return config;
}

/// The same, with bf16 weights that AdamW writes and all ranks gather and round.
RunConfig with_bf16_weights(RunConfig config) {
  config.parallel.shard = "optimizer";
  config.train.fp8_param_gather = false;
  return config;
}

RunPlan plan_of(const RunConfig& config) {
  return plan_run(resolve_run(resolved(config), 50));
}

int64_t bytes_in(const RankPlan& rank, BufferRole role) {
  int64_t bytes = 0;
  for (const Buffer& buffer : rank.programs[kTrainProgram].buffers) {
    if (buffer.role == role && buffer.lifetime == Lifetime::kPersistent) {
      bytes += buffer.num_elems() * static_cast<int64_t>(dtype_bytes(buffer.dtype));
    }
  }
  return bytes;
}

double evaluated(Engine& engine, const RunConfig& config) {
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  return engine.evaluate(*loader.next()).loss;
}

TEST(Fp8Weights, OfMainWeightsHaveTheBitsOfThoseOfBf16Weights) {
  for (const std::string recipe : {"block", "tensor", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    const RunConfig config = config_of(2, recipe, "none");
    const RunConfig with_weights = with_bf16_weights(config);
    EXPECT_LT(bytes_in(plan_of(config).ranks[0], BufferRole::kParam),
              bytes_in(plan_of(with_weights).ranks[0], BufferRole::kParam));
    expect_same_bits(run(config, 2), run(with_weights, 2));
  }
}

TEST(Fp8Weights, AnEvaluationReadsMainWeights) {
  for (const std::string shard : {"none", "optimizer", "parameters"}) {
    const RunConfig config = config_of(2, "block", shard);
    const auto loss_of = [&](const RunConfig& its) {
      Engine engine(plan_of(its), {.poison_step_arena = true});
      engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
      return evaluated(engine, its);
    };
    EXPECT_EQ(loss_of(config), loss_of(with_bf16_weights(config))) << shard;
  }
}

TEST(Fp8Weights, SaveTwoBytesOfEachElement) {
  RunConfig config = config_of(1, "block", "none");
  const int64_t layer = 128 * (2 * 128) + 128 * 128 + 3 * 128 * 256;  // qkv, proj, fc1, fc2
  const auto weights_of = [&](const std::string& recipe) {
    config.train.fp8 = recipe;
    const RunPlan plan = plan_of(config);
    return std::pair{bytes_in(plan.ranks[0], BufferRole::kParam),
                     bytes_in(plan.ranks[0], BufferRole::kMainWeight)};
  };
  const auto [bf16, main] = weights_of("off");
  EXPECT_EQ(weights_of("block"), std::pair(bf16 - 2 * 2 * layer, main));
}

// A filtered product reads its weight in bf16, as does whatever else is not FP8.
TEST(Fp8Weights, LeaveWeightsThatOtherTasksRead) {
  RunConfig config = config_of(1, "block", "none");
  config.train.fp8_filter = {"layers.0.*", "*.fc2"};
  const RunPlan plan = plan_of(config);
  EXPECT_EQ(plan.run.parallel.fp8_weights.size(), 3u);
  for (const Buffer& buffer : plan.ranks[0].programs[kTrainProgram].buffers) {
    EXPECT_NE(buffer.name, "params.layers.1.fp8");
    EXPECT_NE(buffer.name, "main_weights.layers.0.fp8");
  }
}

}  // namespace
}  // namespace braid
