// Ranks on several GPUs of this machine: the losses and weights of one GPU, under every layout that
// GPUs run. A case needs as many GPUs as it has ranks, and says so where there are fewer.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

#include "config/load.h"
#include "support/engine_runs.h"
#include "support/overlap_settings.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

struct GpuLayout {
  const char* name;
  int64_t ranks;
  ParallelConfig parallel;
  const char* family = "llama";
};

void PrintTo(const GpuLayout& layout, std::ostream* out) {
  *out << layout.name;
}

ParallelConfig data(int64_t ranks, const std::string& shard) {
  return {.ranks = ranks, .shard = shard};
}

ParallelConfig tensor(int64_t ranks, int64_t size, bool sequence_parallel) {
  return {.ranks = ranks, .tensor = size, .sequence_parallel = sequence_parallel};
}

ParallelConfig pipeline(int64_t ranks, int64_t size, const std::string& schedule,
                        int64_t virtual_stages = 1) {
  ParallelConfig parallel{.ranks = ranks, .pipeline = size};
  parallel.schedule = schedule;
  parallel.virtual_stages = virtual_stages;
  return parallel;
}

ParallelConfig context(ParallelConfig parallel, int64_t size, const std::string& method) {
  parallel.context = size;
  parallel.context_method = method;
  return parallel;
}

/// Context ranks that pass states.
ParallelConfig states(ParallelConfig parallel) {
  parallel.mamba_context = "states";
  return parallel;
}

ParallelConfig sharded(ParallelConfig parallel, const std::string& shard) {
  parallel.shard = shard;
  return parallel;
}

ParallelConfig all_dimensions(int64_t ranks) {
  ParallelConfig parallel{.ranks = ranks, .tensor = 2, .pipeline = 2};
  parallel.sequence_parallel = true;
  parallel.schedule = "1f1b";
  return parallel;
}

// Kinds of model beside the names of families: a llama with windows, one with experts, a hybrid of
// all kinds of layer but those, one with experts, too, which have no gates, and llamas with FP8
// products, for which tokens, inputs and features of a rank are multiples of 128; or with FP8
// products of experts alone, as there are fewer tokens.
constexpr std::string_view kWindows = "windows";
constexpr std::string_view kWithExperts = "experts";
constexpr std::string_view kFp8Experts = "fp8_experts";
constexpr std::string_view kFp8Dispatch = "fp8_dispatch";
constexpr std::string_view kHybrid = "hybrid";
constexpr std::string_view kHybridExperts = "hybrid_experts";
constexpr std::string_view kFp8Block = "fp8_block";
constexpr std::string_view kFp8Tensor = "fp8_tensor";

/// Experts on `size` ranks.
ParallelConfig experts(ParallelConfig parallel, int64_t size, int64_t split = 1) {
  parallel.expert = size;
  parallel.expert_tensor = split;
  return parallel;
}

void set_model(ModelConfig& model, const GpuLayout& layout) {
  const std::string_view kind = layout.family;
  model.family = kind == "gpt2" ? "gpt2" : kind.starts_with(kHybrid) ? "nemotron_h" : "llama";
  model.layers = 8;
  model.width = 256;
  model.heads = 8;
  model.kv_heads = kind == "gpt2" ? 8 : 4;
  if (kind == "gpt2") {
    model.max_positions = 64;
  } else if (kind == kWindows) {
    model.sliding_window = 20;
  } else if (kind == kWithExperts || kind == kFp8Experts || kind == kFp8Dispatch) {
    model.experts = 8;
    model.experts_per_token = 2;
    model.expert_ffn = 128;
  } else if (kind.starts_with(kHybrid)) {
    model.layers.reset();
    model.pattern = kind == kHybrid ? "M-M*-M*-" : "MEM*-ME-";
    model.mamba_num_heads = 16;
    model.mamba_head_dim = 32;
    model.ssm_state_size = 32;
    model.mamba_n_groups = 4;
    model.mamba_chunk_size = 64;
    if (kind == kHybridExperts) {
      model.experts = 8;
      model.experts_per_token = 2;
      model.expert_ffn = 128;
      model.shared_ffn = 128;
    }
  } else if (kind == kFp8Block || kind == kFp8Tensor) {
    model.width = 512;
    model.ffn = 1536;
  }
}

RunConfig config_of(const GpuLayout& layout) {
  RunConfig config = small_config();
  set_model(config.model, layout);
  config.train.sequence = 64;
  if (layout.family == kFp8Block || layout.family == kFp8Tensor) {
    config.train.sequence = 512;
    config.train.fp8 = layout.family == kFp8Block ? "block" : "tensor";
  }
  if (layout.family == kFp8Experts || layout.family == kFp8Dispatch) {
    config.train.fp8 = "block";
    config.train.fp8_experts = true;
    config.train.fp8_dispatch = layout.family == kFp8Dispatch;
  }
  config.train.dtype = "bfloat16";
  config.train.microbatch = 1;
  config.train.global_batch = 16;
  // Low enough that bf16's rounding does not grow from step to step: norms of CPU ranks in bf16
  // then differ by at most 0.3% over four steps, at 3e-3 by 5%.
  config.optimizer.learning_rate = 1e-3;
  config.parallel = layout.parallel;
  return config;
}

/// Moe.exchange by which ranks with different experts need not reach each other's memory.
std::string blocks_if_experts(const GpuLayout& layout) {
  return layout.parallel.expert * layout.parallel.expert_tensor > 1 ? "blocks" : "auto";
}

/// Root mean square of the difference, relative to that of the reference.
double relative_difference(const std::vector<std::vector<float>>& values,
                           const std::vector<std::vector<float>>& reference) {
  double difference = 0;
  double norm = 0;
  for (size_t unit = 0; unit < reference.size(); ++unit) {
    for (size_t i = 0; i < reference[unit].size(); ++i) {
      const double distance = static_cast<double>(values[unit][i]) - reference[unit][i];
      difference += distance * distance;
      norm += static_cast<double>(reference[unit][i]) * reference[unit][i];
    }
  }
  return std::sqrt(difference / norm);
}

/// How far losses of several GPUs may be from one's. bf16 sums of ranks are rounded in other
/// places: a few units of its 8 bits. With one scale for each rank's part of a tensor, FP8 values
/// are, too: a few units of 3 bits, or 2.
double loss_tolerance(const GpuLayout& layout) {
  return layout.family == kFp8Tensor && layout.parallel.tensor > 1 ? 0.05 : 0.01;
}

class GpuLayouts : public ::testing::TestWithParam<GpuLayout> {
 protected:
  void SetUp() override {
    const auto num_gpus = static_cast<int64_t>(gpus_.usable.size());
    if (num_gpus < GetParam().ranks) {
      GTEST_SKIP() << "needs " << GetParam().ranks << " GPUs, and there are " << num_gpus;
    }
    if (!gpus_.why_alone.empty()) {
      GTEST_SKIP() << gpus_.why_alone;
    }
  }

  EngineOptions options_for(const RunConfig& config) const {
    RunConfig on_gpus = config;
    on_gpus.runtime.device = "cuda";
    return {.device = choose_device(resolved(on_gpus), gpus_),
            .cache_folder = ::testing::TempDir() + "/braid_layouts"};  // of all cases
  }

  static void expect_like_one_gpu(const Outcome& several, const Outcome& one) {
    const double tolerance = loss_tolerance(GetParam());
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(several.losses[step], one.losses[step], tolerance) << step;
    }
    EXPECT_LT(relative_difference(several.state.weights, one.state.weights), 2 * tolerance);
  }

 private:
  const FoundGpus gpus_ = find_gpus();
};

TEST_P(GpuLayouts, HaveTheLossesOfOneGpu) {
  RunConfig config = config_of(GetParam());
  const Outcome several = run(config, 4, options_for(config));
  config.parallel = {};
  const Outcome one = run(config, 4, options_for(config));
  expect_like_one_gpu(several, one);
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(several.grad_norms[step], one.grad_norms[step],
                2 * loss_tolerance(GetParam()) * one.grad_norms[step]);
  }
}

TEST_P(GpuLayouts, HaveTheLossesOfOneGpuWithFewMultiprocessors) {
  RunConfig config = config_of(GetParam());
  config.overlap.comm_sms = {"data=2",    "tensor=2", "pipeline=1",
                             "context=2", "expert=2", "world=1"};
  config.overlap.product_sm_margin = 8;
  const Outcome few = run(config, 4, options_for(config));
  expect_same_bits(run(config, 4, options_for(config)), few);
  config.parallel = {};
  config.overlap = {};
  const Outcome one = run(config, 4, options_for(config));
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(few.losses[step], one.losses[step], loss_tolerance(GetParam())) << step;
  }
}

TEST_P(GpuLayouts, AreBitwiseTheSameWithOverlapOffAndTaskByTask) {
  RunConfig config = config_of(GetParam());
  EngineOptions options = options_for(config);
  const Outcome overlapped = run(config, 4, options);
  config.overlap.mode = "off";
  expect_same_bits(run(config, 4, options), overlapped);
  options.eager = true;
  expect_same_bits(run(config, 4, options), overlapped);
}

TEST_P(GpuLayouts, AreBitwiseTheSameByCopyEnginesHoweverTheyOverlap) {
  RunConfig config = config_of(GetParam());
  config.overlap.comm_engine = "copy";
  EngineOptions options = options_for(config);
  const Outcome overlapped = run(config, 4, options);
  config.overlap.mode = "off";
  expect_same_bits(run(config, 4, options), overlapped);
  options.eager = true;
  expect_same_bits(run(config, 4, options), overlapped);
  if (GetParam().ranks == 2) {  // a sum of two is the same in any order
    config.overlap.comm_engine = "sm";
    expect_same_bits(run(config, 4, options), overlapped);
  }
}

// NCCL or copy engines bring the rows that kernels fetch otherwise.
TEST_P(GpuLayouts, AreBitwiseTheSameWithRowsOfExpertsInBlocks) {
  if (blocks_if_experts(GetParam()) == "auto") {
    GTEST_SKIP() << "no rank has experts of its own";
  }
  RunConfig config = config_of(GetParam());
  EngineOptions options = options_for(config);
  const Outcome direct = run(config, 4, options);
  config.moe.exchange = "blocks";
  options.poison_step_arena = true;
  expect_same_bits(run(config, 4, options), direct);
  options.eager = true;
  expect_same_bits(run(config, 4, options), direct);
}

class GpuRowsOverHosts : public GpuLayouts {};
class GpuOverlapKeys : public GpuLayouts {};

// NCCL brings rows to hosts, and ranks of a host the rest of the way; with two ranks, each is a
// host. A host's rows of a token are added before they are sent back, so sums are rounded
// otherwise.
TEST_P(GpuRowsOverHosts, HaveTheLossesOfOneGpu) {
  RunConfig config = config_of(GetParam());
  config.moe.exchange = "hosts";
  config.moe.exchange_hosts = 2;
  EngineOptions options = options_for(config);
  options.poison_step_arena = true;
  const Outcome several = run(config, 4, options);
  options.eager = true;
  expect_same_bits(run(config, 4, options), several);
  config.overlap.mode = "off";
  expect_same_bits(run(config, 4, options), several);
  config.parallel = {};
  config.moe = {};
  expect_like_one_gpu(several, run(config, 4, options_for(config)));
}

// As OverlapParity on the CPU, which covers more layouts.
TEST_P(GpuOverlapKeys, AreBitwiseTheSameEachAlone) {
  RunConfig config = config_of(GetParam());
  const EngineOptions options = options_for(config);
  config.overlap.mode = "off";
  const Outcome off = run(config, 4, options);
  for (const OverlapSettings& settings : possible_settings(config)) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(settings, " ")));
    config.overlap = overlap_of(settings);
    if (config.overlap.comm_engine == "nccl_copy" && config.parallel.expert > 1) {
      continue;  // exchanges do not reach memory of windows
    }
    const Outcome alone = run(config, 4, options);
    if (may_round_otherwise(settings)) {
      expect_like_one_gpu(alone, off);
    } else {
      expect_same_bits(alone, off);
    }
  }
}

// Engines that a simulation chooses call by call, and its order of tasks.
TEST_P(GpuLayouts, AreBitwiseTheSameWithEnginesOfChoiceTaskByTask) {
  RunConfig config = config_of(GetParam());
  config.overlap.cost = "h200x8";
  config.overlap.list_schedule = true;
  config.overlap.comm_engine = "hidden";
  EngineOptions options = options_for(config);
  const Outcome scheduled = run(config, 4, options);
  options.eager = true;
  expect_same_bits(run(config, 4, options), scheduled);
  if (GetParam().ranks == 2) {  // a sum of two is the same in any order
    config.overlap = {.mode = "off", .comm_engine = "sm"};
    expect_same_bits(run(config, 4, options), scheduled);
  }
}

// Nothing but the order of each rank's streams, and of communication, keeps ranks that are a step
// apart from each other's memory.
TEST_P(GpuLayouts, AreBitwiseTheSameWithOneStepInFlight) {
  for (const std::string engine : {"sm", "copy"}) {
    SCOPED_TRACE(engine);
    RunConfig config = config_of(GetParam());
    config.overlap.comm_engine = engine;
    config = resolved(config);
    EngineOptions options = options_for(config);
    options.poison_step_arena = true;
    ASSERT_EQ(options.steps_in_flight, 2);
    const Outcome two = train_steps(config, options, 20);
    options.eager = true;
    expect_same_bits(train_steps(config, options, 20), two);
    options.eager = false;
    options.steps_in_flight = 1;
    expect_same_bits(train_steps(config, options, 20), two);
  }
}

// As above, beside one GPU: bf16 sums are rounded once here.
TEST_P(GpuLayouts, HaveTheLossesOfOneGpuByCopyEngines) {
  RunConfig config = config_of(GetParam());
  config.overlap.comm_engine = "copy";
  const Outcome several = run(config, 4, options_for(config));
  config.parallel = {};
  const Outcome one = run(config, 4, options_for(config));
  expect_like_one_gpu(several, one);
}

// They only move bytes; each on a communicator of its own, over windows.
TEST_P(GpuLayouts, AreBitwiseTheSameByCopiesOfNccl) {
  RunConfig config = config_of(GetParam());
  config.moe.exchange = blocks_if_experts(GetParam());  // others do not reach memory of windows
  config.overlap.comm_engine = "sm";
  EngineOptions options = options_for(config);
  const Outcome by_sms = run(config, 4, options);
  config.overlap.comm_engine = "nccl_copy";
  expect_same_bits(run(config, 4, options), by_sms);
  options.eager = true;
  expect_same_bits(run(config, 4, options), by_sms);
}

// NCCL's kernels for windows may add in another order.
TEST_P(GpuLayouts, HaveTheLossesOfOneGpuOnWindows) {
  RunConfig config = config_of(GetParam());
  config.moe.exchange = blocks_if_experts(GetParam());  // others do not reach memory of windows
  EngineOptions options = options_for(config);
  options.nccl_windows = true;
  const Outcome several = run(config, 4, options);
  options.eager = true;
  expect_same_bits(run(config, 4, options), several);
  config.parallel = {};
  const Outcome one = run(config, 4, options_for(config));
  expect_like_one_gpu(several, one);
}

// A third of equal loads is too little in any step.
TEST_P(GpuLayouts, HaveTheSameBitsIfRowsOfExpertsLackRoomAtFirst) {
  if (GetParam().family != kWithExperts) {
    GTEST_SKIP() << "no rank needs room for rows of others";
  }
  RunConfig config = config_of(GetParam());
  const EngineOptions options = options_for(config);
  const Outcome ample = run(config, 3, options);
  config.moe.capacity = 0.3;
  expect_same_bits(run(config, 3, options), ample);
}

constexpr auto kNameOfLayout = [](const auto& layout) { return std::string(layout.param.name); };

// Rows do not travel as FP8 between hosts of one rank.
INSTANTIATE_TEST_SUITE_P(
    , GpuRowsOverHosts,
    ::testing::Values(
        GpuLayout{"experts2", 2, experts(data(2, "none"), 2), "experts"},
        GpuLayout{"experts2_optimizer", 2, experts(data(2, "optimizer"), 2), "experts"},
        GpuLayout{"experts2_tensor2", 2, experts(tensor(2, 2, true), 2), "experts"},
        GpuLayout{"experts2_ring2", 2, experts(context(data(2, "none"), 2, "ring"), 2), "experts"},
        GpuLayout{"fp8_experts2", 2, experts(data(2, "none"), 2), "fp8_experts"},
        GpuLayout{"hybrid_experts2", 2, experts(data(2, "none"), 2), "hybrid_experts"},
        GpuLayout{"experts4", 4, experts(data(4, "gradients"), 4), "experts"},
        GpuLayout{"experts2_pipeline2", 4, experts(pipeline(4, 2, "1f1b"), 2), "experts"},
        GpuLayout{"fp8_dispatch4", 4, experts(data(4, "none"), 4), "fp8_dispatch"}),
    kNameOfLayout);

// One layout of each kind of model.
INSTANTIATE_TEST_SUITE_P(
    , GpuOverlapKeys,
    ::testing::Values(
        GpuLayout{"parameters2", 2, data(2, "parameters")},
        GpuLayout{"tensor2_sequence", 2, tensor(2, 2, true)},
        GpuLayout{"experts2_optimizer", 2, experts(data(2, "optimizer"), 2), "experts"},
        GpuLayout{"fp8_dispatch2", 2, experts(data(2, "none"), 2), "fp8_dispatch"},
        GpuLayout{"fp8_block_parameters2", 2, data(2, "parameters"), "fp8_block"},
        GpuLayout{"hybrid_parameters2", 2, data(2, "parameters"), "hybrid"},
        GpuLayout{"hybrid_experts2", 2, experts(data(2, "none"), 2), "hybrid_experts"}),
    kNameOfLayout);

INSTANTIATE_TEST_SUITE_P(
    , GpuLayouts,
    ::testing::Values(
        GpuLayout{"data2", 2, data(2, "none")}, GpuLayout{"optimizer2", 2, data(2, "optimizer")},
        GpuLayout{"gradients2", 2, data(2, "gradients")},
        GpuLayout{"parameters2", 2, data(2, "parameters")},
        GpuLayout{"parameters2_gpt2", 2, data(2, "parameters"), "gpt2"},
        GpuLayout{"tensor2", 2, tensor(2, 2, false)},
        GpuLayout{"tensor2_sequence", 2, tensor(2, 2, true)},
        GpuLayout{"tensor2_gpt2", 2, tensor(2, 2, true), "gpt2"},
        GpuLayout{"gpipe2", 2, pipeline(2, 2, "gpipe")},
        GpuLayout{"1f1b2", 2, pipeline(2, 2, "1f1b")},
        GpuLayout{"interleaved2", 2, pipeline(2, 2, "interleaved", 2)},
        GpuLayout{"zbh1_2", 2, pipeline(2, 2, "zb-h1")},
        GpuLayout{"zbv2", 2, pipeline(2, 2, "zb-v", 2)},
        GpuLayout{"dualpipev2", 2, pipeline(2, 2, "dualpipe-v", 2)},
        GpuLayout{"ring2", 2, context(data(2, "none"), 2, "ring")},
        GpuLayout{"ring2_gpt2", 2, context(data(2, "optimizer"), 2, "ring"), "gpt2"},
        GpuLayout{"ring2_windows", 2, context(data(2, "none"), 2, "ring"), "windows"},
        GpuLayout{"all_gather2_windows", 2, context(data(2, "none"), 2, "all_gather"), "windows"},
        GpuLayout{"all_gather2", 2, context(data(2, "none"), 2, "all_gather")},
        GpuLayout{"a2a2", 2, context(data(2, "parameters"), 2, "a2a")},
        GpuLayout{"experts2", 2, experts(data(2, "none"), 2), "experts"},
        GpuLayout{"experts2_optimizer", 2, experts(data(2, "optimizer"), 2), "experts"},
        GpuLayout{"experts2_split", 2, experts(data(2, "none"), 1, 2), "experts"},
        GpuLayout{"experts2_tensor2", 2, experts(tensor(2, 2, true), 2), "experts"},
        GpuLayout{"experts2_ring2", 2, experts(context(data(2, "none"), 2, "ring"), 2), "experts"},
        GpuLayout{"data4", 4, data(4, "none")}, GpuLayout{"parameters4", 4, data(4, "parameters")},
        GpuLayout{"tensor4", 4, tensor(4, 4, true)},
        GpuLayout{"tensor2_data2", 4, tensor(4, 2, true)},
        GpuLayout{"tensor2_parameters2", 4, sharded(tensor(4, 2, true), "parameters")},
        GpuLayout{"1f1b4", 4, pipeline(4, 4, "1f1b")},
        GpuLayout{"pipeline2_optimizer2", 4, sharded(pipeline(4, 2, "1f1b"), "optimizer")},
        GpuLayout{"tensor2_pipeline2", 4, all_dimensions(4)},
        GpuLayout{"ring4", 4, context(data(4, "parameters"), 4, "ring")},
        GpuLayout{"all_gather4", 4, context(data(4, "none"), 4, "all_gather")},
        GpuLayout{"a2a4", 4, context(data(4, "none"), 4, "a2a")},
        GpuLayout{"a2a2_ring2", 4, context(data(4, "optimizer"), 4, "a2a+ring"), "gpt2"},
        GpuLayout{"ring2_data2", 4, context(data(4, "optimizer"), 2, "ring")},
        GpuLayout{"ring2_tensor2", 4, context(tensor(4, 2, true), 2, "ring")},
        GpuLayout{"all_gather2_pipeline2", 4, context(pipeline(4, 2, "1f1b"), 2, "all_gather")},
        GpuLayout{"experts4", 4, experts(data(4, "gradients"), 4), "experts"},
        GpuLayout{"experts2_data4", 4, experts(data(4, "optimizer"), 2), "experts"},
        GpuLayout{"experts2_parameters4", 4, experts(data(4, "parameters"), 2), "experts"},
        GpuLayout{"experts2_split2", 4, experts(data(4, "none"), 2, 2), "experts"},
        GpuLayout{"experts4_tensor2", 4, experts(tensor(4, 2, true), 4), "experts"},
        GpuLayout{"experts2_pipeline2", 4, experts(pipeline(4, 2, "1f1b"), 2), "experts"},
        GpuLayout{"experts2_dualpipev2", 4, experts(pipeline(4, 2, "dualpipe-v", 2), 2), "experts"},
        GpuLayout{"fp8_experts2", 2, experts(data(2, "none"), 2), "fp8_experts"},
        GpuLayout{"fp8_dispatch2", 2, experts(data(2, "none"), 2), "fp8_dispatch"},
        GpuLayout{"fp8_experts_gradients2", 2, data(2, "gradients"), "fp8_experts"},
        GpuLayout{"fp8_block_optimizer2", 2, data(2, "optimizer"), "fp8_block"},
        GpuLayout{"fp8_block_parameters2", 2, data(2, "parameters"), "fp8_block"},
        GpuLayout{"fp8_block_tensor2", 2, tensor(2, 2, true), "fp8_block"},
        GpuLayout{"fp8_block_parameters4", 4, data(4, "parameters"), "fp8_block"},
        GpuLayout{"fp8_block_tensor4", 4, tensor(4, 4, true), "fp8_block"},
        GpuLayout{"fp8_block_tensor2_optimizer2", 4, sharded(tensor(4, 2, true), "optimizer"),
                  "fp8_block"},
        GpuLayout{"fp8_block_pipeline2_parameters2", 4,
                  sharded(pipeline(4, 2, "1f1b"), "parameters"), "fp8_block"},
        GpuLayout{"fp8_tensor_optimizer2", 2, data(2, "optimizer"), "fp8_tensor"},
        GpuLayout{"fp8_tensor_parameters2", 2, data(2, "parameters"), "fp8_tensor"},
        GpuLayout{"fp8_tensor_tensor2", 2, tensor(2, 2, true), "fp8_tensor"},
        GpuLayout{"fp8_tensor_parameters4", 4, data(4, "parameters"), "fp8_tensor"},
        GpuLayout{"fp8_tensor_tensor4", 4, tensor(4, 4, true), "fp8_tensor"},
        GpuLayout{"fp8_tensor_tensor2_optimizer2", 4, sharded(tensor(4, 2, true), "optimizer"),
                  "fp8_tensor"},
        GpuLayout{"fp8_tensor_pipeline2_parameters2", 4,
                  sharded(pipeline(4, 2, "1f1b"), "parameters"), "fp8_tensor"},
        GpuLayout{"hybrid_parameters2", 2, data(2, "parameters"), "hybrid"},
        GpuLayout{"hybrid_tensor2", 2, tensor(2, 2, true), "hybrid"},
        GpuLayout{"hybrid_ring2", 2, context(data(2, "none"), 2, "ring"), "hybrid"},
        GpuLayout{"hybrid_a2a2", 2, context(data(2, "optimizer"), 2, "a2a"), "hybrid"},
        GpuLayout{"hybrid_states_ring2", 2, states(context(data(2, "none"), 2, "ring")), "hybrid"},
        GpuLayout{"hybrid_states_a2a2", 2, states(context(data(2, "parameters"), 2, "a2a")),
                  "hybrid"},
        GpuLayout{"hybrid_experts2", 2, experts(data(2, "none"), 2), "hybrid_experts"},
        GpuLayout{"hybrid_parameters4", 4, data(4, "parameters"), "hybrid"},
        GpuLayout{"hybrid_tensor4", 4, tensor(4, 4, true), "hybrid"},
        GpuLayout{"hybrid_pipeline2_optimizer2", 4, sharded(pipeline(4, 2, "1f1b"), "optimizer"),
                  "hybrid"},
        GpuLayout{"hybrid_states_ring4", 4, states(context(data(4, "optimizer"), 4, "ring")),
                  "hybrid"},
        GpuLayout{"parameters8", 8, data(8, "parameters")},
        GpuLayout{"tensor8", 8, tensor(8, 8, true), "gpt2"},
        GpuLayout{"ring8", 8, context(data(8, "optimizer"), 8, "ring")},
        GpuLayout{"tensor2_pipeline2_ring2", 8, context(all_dimensions(8), 2, "ring")},
        GpuLayout{"tensor2_pipeline2_data2", 8, all_dimensions(8)},
        GpuLayout{"tensor2_pipeline2_optimizer2", 8, sharded(all_dimensions(8), "optimizer")}),
    kNameOfLayout);

}  // namespace
}  // namespace braid
