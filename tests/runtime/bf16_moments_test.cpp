#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/engine_runs.h"

namespace braid {
namespace {

/// bf16 moments, and no clipping: the norm's sum, and so its scale, depends on the shards.
RunConfig narrow_config() {
  RunConfig config = small_config();
  config.optimizer.moments_dtype = "bfloat16";
  config.optimizer.beta2 = 0.999;
  config.optimizer.clip_norm = 0;
  return config;
}

bool are_bf16(const std::vector<std::vector<float>>& units) {
  const auto is_bf16 = [](float value) { return static_cast<float>(BFloat16(value)) == value; };
  return std::ranges::all_of(units,
                             [&](const auto& unit) { return std::ranges::all_of(unit, is_bf16); });
}

TEST(Bf16Moments, TrainLikeFp32Moments) {
  RunConfig wide = narrow_config();
  wide.optimizer.moments_dtype = "float32";
  const Outcome expected = run(wide, 60);
  const Outcome outcome = run(narrow_config(), 60);
  EXPECT_LT(outcome.losses.back(), 0.65 * outcome.losses.front());
  EXPECT_NEAR(outcome.losses.back(), expected.losses.back(), 0.02 * expected.losses.back());
  EXPECT_TRUE(are_bf16(outcome.state.exp_avg) && are_bf16(outcome.state.exp_avg_sq));
  EXPECT_FALSE(are_bf16(outcome.state.weights)) << "main weights are fp32";
  EXPECT_FALSE(are_bf16(expected.state.exp_avg_sq));
}

// Each rank has one microbatch: then main grads have the same bits in all kinds of shards.
TEST(Bf16Moments, HaveTheSameBitsInAnyShardAndOverlap) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    RunConfig config = narrow_config();
    config.train.dtype = dtype;
    config.parallel.ranks = config.parallel.data = 4;
    config.overlap.mode = "off";
    const Outcome copies = run(config, 3);
    for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
      for (const std::string mode : {"off", "auto"}) {
        SCOPED_TRACE(dtype + " " + shard + " " + mode);
        config.parallel.shard = shard;
        config.overlap.mode = mode;
        const Outcome outcome = run(config, 3);
        EXPECT_EQ(outcome.losses, copies.losses);
        EXPECT_EQ(outcome.state.weights, copies.state.weights);
        EXPECT_EQ(outcome.state.exp_avg, copies.state.exp_avg);
        EXPECT_EQ(outcome.state.exp_avg_sq, copies.state.exp_avg_sq);
      }
    }
  }
}

// Tensor ranks hold copies of norms, at other places in their buffers than one rank would.
TEST(Bf16Moments, CopiesOnSeveralRanksStayEqual) {
  RunConfig config = narrow_config();
  config.parallel.ranks = 4;
  config.parallel.tensor = config.parallel.data = 2;
  config = resolved(config);
  Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  for (int64_t step = 1; step <= 3; ++step) {
    engine.train_step(*loader.next(), config.optimizer, 1e-2, step);
  }
  EXPECT_EQ(engine.replica_difference().text, "");
}

int64_t state_bytes(const RunConfig& config) {
  validate(config);
  const RunPlan plan = plan_run(resolve_run(resolved(config), 50));
  int64_t bytes = 0;
  for (const Buffer& buffer : plan.ranks.front().programs.front().buffers) {
    bytes += buffer.role == BufferRole::kOptimizerState ? buffer.size_bytes() : 0;
  }
  return bytes;
}

TEST(Bf16Moments, TakeHalfTheMemory) {
  RunConfig wide = narrow_config();
  wide.optimizer.moments_dtype = "float32";
  EXPECT_GT(state_bytes(wide), 0);
  EXPECT_EQ(2 * state_bytes(narrow_config()), state_bytes(wide));
}

}  // namespace
}  // namespace braid
