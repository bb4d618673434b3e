#include "runtime/memory_check.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "backends/cuda/device_needs.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

class CudaMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpus_.usable.empty()) {
      GTEST_SKIP() << gpus_.why_none;
    }
  }
  Device gpu() const { return {.gpu = gpus_.usable.front(), .reason = ""}; }
  int64_t free_bytes() const { return free_cuda_bytes(gpus_.usable.front().device); }

 private:
  const CudaGpus gpus_ = find_cuda_gpus();
};

/// A hundred MiB or so, with attention and biases.
RunConfig config_of(const std::string& family) {
  RunConfig config = small_config();
  config.model.family = family;
  config.model.layers = 4;
  config.model.width = 512;
  config.model.heads = 8;
  config.model.kv_heads = family == "llama" ? 2 : 8;
  if (family == "gpt2") {
    config.model.max_positions = 512;
  }
  config.train.sequence = 512;
  config.train.dtype = "bfloat16";
  return resolved(config);
}

// Planned is allocated, and all that the driver gives for a run, traced steps included, is no more
// than the check counts with. Other processes on the GPU would be counted too.
TEST_F(CudaMemory, TheDriverGivesWhatIsPlannedAndNoMoreThanIsCounted) {
  for (const std::string family : {"llama", "gpt2"}) {
    SCOPED_TRACE(family);
    const RunConfig config = config_of(family);
    const int64_t before = free_bytes();  // with CUDA's context
    RunPlan plan = plan_run(config, 50);
    const MemoryPlan memory = plan.ranks[0].memory;
    const MemoryNeeds needs = gpu_needs(plan.ranks[0], {});
    Engine engine(std::move(plan), {.device = gpu()});
    engine.write_state(initial_state(engine.plan().layout, engine.plan().model, 5));
    EXPECT_EQ(engine.allocated_bytes(0), memory.peak_bytes());
    int64_t least = free_bytes();
    EXPECT_GE(before - least, memory.peak_bytes());
    const NoisySequences source(config.train.sequence);
    BatchLoader loader(source, {.shape = {.num_ranks = 1, .num_microbatches = 4, .microbatch = 2}});
    for (int step = 1; step <= 4; ++step) {
      engine.set_tracing(step > 2);
      engine.train_step(*loader.next(), config.optimizer, 1e-3, step);
      least = std::min(least, free_bytes());
    }
    EXPECT_LE(before - least, needs.bytes());
  }
}

TEST_F(CudaMemory, WhatIsFreeIsWhatTheDriverSays) {
  const RunMemory memory = free_memory(gpu(), config_of("llama"));
  ASSERT_TRUE(memory.gpu.has_value());
  EXPECT_TRUE(memory.gpu->has_context);
  EXPECT_GT(memory.gpu->free_bytes, 0);
  EXPECT_LT(memory.gpu->free_bytes, gpu().gpu->memory_bytes);
}

}  // namespace
}  // namespace braid
