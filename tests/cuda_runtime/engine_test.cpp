#include "runtime/engine.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "plan/run_spec.h"
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
    return {.device = {.backend = gpus_.backend, .gpu = gpus_.usable.front(), .reason = ""},
            .eager = eager};
  }

 private:
  const FoundGpus gpus_ = find_gpus();
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

// Documents differ from step to step, and the graph stays.
TEST_F(CudaEngine, SeparatesDocumentsAsTheCpuDoes) {
  for (const std::string family : {"llama", "gpt2"}) {
    SCOPED_TRACE(family);
    RunConfig config = bfloat16_config(family);
    const Outcome plain = run(config, 3, on_gpu());
    config.data.document_mask = true;
    const Outcome cpu = run(config, 6);
    const Outcome gpu = run(config, 6, on_gpu());
    for (size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 0.01 + 0.005 * static_cast<double>(step));
      EXPECT_NEAR(gpu.grad_norms[step], cpu.grad_norms[step], 0.1 * cpu.grad_norms[step]);
    }
    // Attention changes no loss before the first update; after two, the mask does by 0.06 to 0.09.
    EXPECT_GT(std::abs(gpu.losses[2] - plain.losses[2]), 0.04);
    expect_same_bits(run(config, 6, on_gpu(/*eager=*/true)), gpu);
  }
}

TEST_F(CudaEngine, TrainsGemmaAsTheCpuDoes) {
  RunConfig config = bfloat16_config("llama");
  config.model.family = "gemma3_text";
  config.model.pattern = "sliding+mlp attention+mlp";
  config.model.layers.reset();
  config.model.sliding_window = 5;
  config.model.rope_local_base_freq = 100.0;
  const Outcome cpu = run(config, 6);
  const Outcome gpu = run(config, 6, on_gpu());
  for (size_t step = 0; step < cpu.losses.size(); ++step) {
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 0.01 + 0.005 * static_cast<double>(step));
    EXPECT_NEAR(gpu.grad_norms[step], cpu.grad_norms[step], 0.1 * cpu.grad_norms[step]);
  }
  expect_same_bits(run(config, 6, on_gpu(/*eager=*/true)), gpu);
}

TEST_F(CudaEngine, HasWindowsAsTheCpuHas) {
  for (const bool documents : {false, true}) {
    SCOPED_TRACE(documents ? "with documents" : "whole sequences");
    RunConfig config = bfloat16_config("llama");
    config.data.document_mask = documents;
    config.model.sliding_window = 5;
    const Outcome cpu = run(config, 6);
    const Outcome gpu = run(config, 6, on_gpu());
    for (size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 0.01 + 0.005 * static_cast<double>(step));
      EXPECT_NEAR(gpu.grad_norms[step], cpu.grad_norms[step], 0.1 * cpu.grad_norms[step]);
    }
    expect_same_bits(run(config, 6, on_gpu(/*eager=*/true)), gpu);
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

// Activation functions and norms make the copies of their results, also when these are recomputed.
TEST_F(CudaEngine, Fp8CopiesInTheTaskThatMakesTheValueChangeNoBit) {
  for (const auto& [recipe, family] :
       {std::pair{"tensor", "llama"}, {"block", "llama"}, {"block", "gpt2"}, {"mxfp8", "gpt2"}}) {
    SCOPED_TRACE(fmt::format("{} {}", recipe, family));
    RunConfig config = bfloat16_config(family);
    config.model.ffn = 512;  // a multiple of 128, as all others are
    config.train.fp8 = recipe;
    config.runtime.fuse_swiglu = "off";
    const Outcome apart = run(config, 3, on_gpu());
    config.runtime.fuse_swiglu = "on";
    expect_same_bits(run(config, 3, on_gpu()), apart);
    config.memory.recompute = "full";
    expect_same_bits(run(config, 3, on_gpu()), apart);
  }
}

// Experts are chosen in turn, so that rounding changes no choice.
TEST_F(CudaEngine, TrainsFp8ExpertsAsTheCpuDoes) {
  RunConfig config = bfloat16_config("llama");
  config.model.experts = 8;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 128;
  config.moe.force_balance = true;
  config.train.fp8 = "block";
  config.train.fp8_experts = true;
  const Outcome cpu = run(config, 4);
  const Outcome gpu = run(config, 4, on_gpu());
  for (size_t step = 0; step < cpu.losses.size(); ++step) {
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 0.01 + 0.005 * static_cast<double>(step));
    EXPECT_NEAR(gpu.grad_norms[step], cpu.grad_norms[step], 0.1 * cpu.grad_norms[step]);
  }
  expect_same_bits(run(config, 4, on_gpu(/*eager=*/true)), gpu);
  config.memory.recompute = "full";
  expect_same_bits(run(config, 4, on_gpu()), gpu);
}

// Atomic additions of fp32 in another order: the same results up to a few roundings of bfloat16.
TEST_F(CudaEngine, WhatNeedNotRepeatIsTheSameUpToRounding) {
  const RunConfig config = bfloat16_config("llama");
  EngineOptions options = on_gpu();
  const Outcome repeatable = run(config, 4, options);
  options.repeatable = false;
  const Outcome fast = run(config, 4, options);
  for (size_t step = 0; step < fast.losses.size(); ++step) {
    EXPECT_NEAR(fast.losses[step], repeatable.losses[step], 0.01);
    EXPECT_NEAR(fast.grad_norms[step], repeatable.grad_norms[step],
                0.05 * repeatable.grad_norms[step]);
  }
}

TEST_F(CudaEngine, LearnsASimpleLanguage) {
  const Outcome outcome = run(bfloat16_config("llama"), 60, on_gpu());
  EXPECT_NEAR(outcome.losses.front(), std::log(50.0), 0.3);  // nothing is known yet
  EXPECT_LT(outcome.losses.back(), 0.6 * outcome.losses.front());
}

/// Losses and gradient norms of four steps, and the timeline of the last one if it was traced.
struct FourSteps {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  Timeline timeline;

  FourSteps(const RunConfig& config, const EngineOptions& options, int first_traced_step) {
    Engine engine(plan_run(resolve_run(config, 50)), options);
    engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
    const NoisySequences source(config.train.sequence);
    BatchLoader loader(source, {.shape = {.num_ranks = 1, .num_microbatches = 4, .microbatch = 2}});
    for (int step = 1; step <= 4; ++step) {
      engine.set_tracing(step >= first_traced_step);
      const StepResult result = engine.train_step(*loader.next(), config.optimizer, 1e-3, step);
      losses.push_back(result.loss);
      grad_norms.push_back(result.grad_norm);
    }
    if (first_traced_step <= 4) {
      timeline = engine.timeline();
      num_tasks = engine.plan().ranks[0].programs[kTrainProgram].tasks.size();
    }
  }

  size_t num_tasks = 0;
};

// Matrix products and attention are several kernels of libraries, in graphs and outside of them.
TEST_F(CudaEngine, TracedStepsGiveTheSameBitsAndEveryKernelHasItsTask) {
  const RunConfig config = resolved(bfloat16_config("llama"));
  const FourSteps plain(config, on_gpu(), 5);
  for (const bool eager : {false, true}) {
    SCOPED_TRACE(eager ? "eager" : "graph");
    const FourSteps traced(config, on_gpu(eager), 2);
    EXPECT_EQ(traced.losses, plain.losses);
    EXPECT_EQ(traced.grad_norms, plain.grad_norms);
    ASSERT_EQ(traced.timeline.ranks.size(), 1u);
    const RankTimeline& rank = traced.timeline.ranks[0];
    EXPECT_EQ(rank.tasks.size(), traced.num_tasks);
    EXPECT_EQ(traced.timeline.source, "cuda, " + rank.method);
    if (rank.method != "CUPTI") {
      EXPECT_NE(rank.remark, "");
      continue;
    }
    EXPECT_EQ(rank.remark, "");
    std::vector<int> num_kernels(rank.tasks.size());
    for (const TimelineKernel& kernel : rank.kernels) {
      ASSERT_LT(kernel.task, num_kernels.size()) << rank.kernel_names[kernel.name];
      ++num_kernels[kernel.task];
    }
    EXPECT_THAT(num_kernels, ::testing::Each(::testing::Ge(1)));
  }
}

}  // namespace
}  // namespace braid
