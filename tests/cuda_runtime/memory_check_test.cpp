#include "runtime/memory_check.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/device_needs.h"
#include "plan/run_spec.h"
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
  Device gpu() const {
    return {.backend = gpus_.backend, .gpu = gpus_.usable.front(), .reason = ""};
  }
  const FoundGpus& gpus() const { return gpus_; }
  int64_t free_bytes() const { return gpus_.backend->free_bytes(gpus_.usable.front().device); }

 private:
  const FoundGpus gpus_ = find_gpus();
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
    RunPlan plan = plan_run(resolve_run(config, 50));
    const MemoryPlan memory = plan.ranks[0].memory;
    const MemoryNeeds needs = rank_needs(gpu_backend(), plan.ranks[0], {});
    Engine engine(std::move(plan), {.device = gpu()});
    engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
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

// The same of two GPUs, with NCCL's communicators.
TEST_F(CudaMemory, NcclTakesNoMoreThanIsCounted) {
  if (gpus().usable.size() < 2) {
    GTEST_SKIP() << "needs two GPUs";
  }
  RunConfig config = config_of("llama");
  config.parallel.ranks = 2;
  config.parallel.data = 2;
  config.parallel.shard = "optimizer";
  const Device device = choose_device(config, gpus());
  const auto free_on = [&](size_t rank) {
    return device.backend->free_bytes(device.gpu_of(rank).device);
  };
  const std::array before{free_on(0), free_on(1)};  // with CUDA's contexts
  RunPlan plan = plan_run(resolve_run(config, 50));
  std::vector<MemoryNeeds> needs;
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_FALSE(nccl_needs(rank.programs).empty());
    needs.push_back(rank_needs(gpu_backend(), rank, {}));
  }
  Engine engine(std::move(plan), {.device = device});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = 2,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  for (int step = 1; step <= 2; ++step) {
    engine.train_step(*loader.next(), config.optimizer, 1e-3, step);
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_LE(before.at(rank) - free_on(rank), needs[rank].bytes()) << "rank " << rank;
    // Counted is not far from taken either.
    EXPECT_GE(before.at(rank) - free_on(rank), needs[rank].bytes() - (int64_t{3} << 29))
        << "rank " << rank;
  }
}

TEST_F(CudaMemory, WhatIsFreeIsWhatTheDriverSays) {
  const RunMemory memory = free_memory(gpu(), 1);
  ASSERT_TRUE(memory.gpu.has_value());
  EXPECT_TRUE(memory.gpu->has_context);
  EXPECT_GT(memory.gpu->free_bytes, 0);
  EXPECT_LT(memory.gpu->free_bytes, gpu().gpu->memory_bytes);
}

}  // namespace
}  // namespace braid
