#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/engine_runs.h"

namespace braid {
namespace {

class CudaEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpus_.usable.empty()) {
      GTEST_SKIP() << gpus_.why_none;
    }
  }

  EngineOptions on_gpu(bool eager = false) const {
    return {.device = {.gpu = gpus_.usable.front(), .reason = ""}, .eager = eager};
  }

 private:
  const CudaGpus gpus_ = find_cuda_gpus();
};

RunConfig bfloat16_config(const std::string& family) {
  RunConfig config = small_config();
  config.model.family = family;
  config.model.width = 256;
  config.model.heads = 4;
  config.model.kv_heads = family == "llama" ? 2 : 4;
  if (family == "gpt2") {
    config.model.max_positions = 64;
  }
  config.train.sequence = 64;
  config.train.dtype = "bfloat16";
  return config;
}

// Both devices round to bfloat16 at the same places, but sum in different orders, so that results
// differ by some units of its 8-bit mantissa, and more with each step.
TEST_F(CudaEngine, TrainsAsTheCpuDoes) {
  for (const std::string family : {"llama", "gpt2"}) {
    SCOPED_TRACE(family);
    const RunConfig config = bfloat16_config(family);
    const Outcome cpu = run(config, 8);
    const Outcome gpu = run(config, 8, on_gpu());
    for (size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 0.01 + 0.005 * static_cast<double>(step));
      EXPECT_NEAR(gpu.grad_norms[step], cpu.grad_norms[step], 0.1 * cpu.grad_norms[step]);
    }
    EXPECT_NEAR(gpu.losses[0], cpu.losses[0], 0.003);
    EXPECT_NEAR(gpu.grad_norms[0], cpu.grad_norms[0], 0.02 * cpu.grad_norms[0]);
  }
}

TEST_F(CudaEngine, GraphEagerAndASecondRunAreBitwiseEqual) {
  for (const std::string family : {"llama", "gpt2"}) {
    SCOPED_TRACE(family);
    const RunConfig config = bfloat16_config(family);
    const Outcome graph = run(config, 6, on_gpu());
    for (const bool eager : {false, true}) {
      expect_same_bits(run(config, 6, on_gpu(eager)), graph);
    }
  }
}

TEST_F(CudaEngine, LearnsASimpleLanguage) {
  const Outcome outcome = run(bfloat16_config("llama"), 60, on_gpu());
  EXPECT_NEAR(outcome.losses.front(), std::log(50.0), 0.3);  // nothing is known yet
  EXPECT_LT(outcome.losses.back(), 0.6 * outcome.losses.front());
}

TEST_F(CudaEngine, TracesItsStepsAsCuda) {
  const RunConfig config = resolved(bfloat16_config("llama"));
  Engine engine(plan_run(config, 50), on_gpu());
  engine.write_state(initial_state(engine.plan().layout, engine.plan().model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = 1, .num_microbatches = 4, .microbatch = 2}});
  engine.set_tracing(true);
  engine.train_step(*loader.next(), config.optimizer, 1e-3, 1);
  const Timeline timeline = engine.timeline();
  EXPECT_EQ(timeline.source, "cuda");
  ASSERT_EQ(timeline.ranks.size(), 1u);
  EXPECT_EQ(timeline.ranks[0].tasks.size(),
            engine.plan().ranks[0].programs[kTrainProgram].tasks.size());
}

}  // namespace
}  // namespace braid
