#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/quantize.h"
#include "support/engine_runs.h"
#include "support/product_factors.h"

namespace braid {
namespace {

/// One microbatch per rank, on ranks that hold shards of the parameters.
RunConfig sharded_config(int64_t ranks, const std::string& recipe) {
  RunConfig config = small_config();
  config.model.width = 128;
  config.model.ffn = 256;
  config.train.sequence = 64;
  config.train.global_batch = 2 * ranks;
  config.train.dtype = "bfloat16";
  config.train.fp8 = recipe;
  config.train.fp8_weight_blocks = recipe == "mxfp8" ? "squares" : "rows";
  config.parallel.ranks = ranks;
  config.parallel.data = ranks;
  config.parallel.shard = "parameters";
  return config;
}

RunPlan plan_of(const RunConfig& config) {
  return plan_run(resolve_run(resolved(config), 50));
}

/// What ranks gather of the weights in layers, in bytes, of FP8 copies or of other weights.
int64_t gathered_bytes(const RunPlan& plan, bool of_copies) {
  const Program& program = plan.ranks.front().programs[kTrainProgram];
  int64_t bytes = 0;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    if (spec.op == "all_gather" && task.label.layer >= 0 &&
        is_fp8(spec.operands[1].dtype) == of_copies) {
      bytes += spec.operands[1].shape.num_elems() *
               static_cast<int64_t>(dtype_bytes(spec.operands[1].dtype));
    }
  }
  return bytes;
}

int64_t count_ops(const RunPlan& plan, std::string_view op) {
  const Program& program = plan.ranks.front().programs[kTrainProgram];
  return std::ranges::count_if(program.tasks,
                               [&](const Task& task) { return program.spec(task).op == op; });
}

/// Steps with and without gathers of copies: results, and the copies that products read.
void expect_no_bit_changes(RunConfig config, int64_t steps = 1) {
  const RunPlan plan = plan_of(config);
  EXPECT_GT(gathered_bytes(plan, /*of_copies=*/true), 0);
  ProductFactors of_copies(config.parallel.ranks);
  ProductFactors of_values(config.parallel.ranks);
  const Outcome copies = run(config, steps, of_copies.options());
  config.train.fp8_param_gather = false;
  expect_same_bits(copies, run(config, steps, of_values.options()));
  EXPECT_FALSE(of_copies.by_rank()[0].empty());
  EXPECT_TRUE(of_copies.by_rank() == of_values.by_rank());
}

// Shards of 3 and 5 ranks cut rows, and blocks between ranks.
TEST(Fp8ParamGather, ChangesNoBitOnAnyNumberOfRanks) {
  for (const auto& [ranks, recipe] : {std::pair{2, "tensor"}, std::pair{3, "block"},
                                      std::pair{5, "mxfp8"}, std::pair{8, "block"}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, recipe));
    RunConfig config = sharded_config(ranks, recipe);
    config.model.layers = ranks < 5 ? 2 : 1;
    config.train.microbatch = 1;
    config.train.global_batch = ranks;
    config.train.sequence = 128;
    expect_no_bit_changes(config);
  }
}

TEST(Fp8ParamGather, ChangesNoBitOfOtherLayouts) {
  RunConfig config = sharded_config(2, "block");
  config.train.global_batch = 8;  // two microbatches
  config.parallel.bucket = "virtual_stage";
  expect_no_bit_changes(config);
  config.parallel.bucket = "layer";
  config.parallel.ranks = 4;
  config.parallel.pipeline = 2;
  config.parallel.schedule = "zb-h1";
  expect_no_bit_changes(config);
}

// Ranks that update parts of a shard gather the copies of parts first.
TEST(Fp8ParamGather, ChangesNoBitIfReplicasUpdatePartsOfAShard) {
  for (const std::string shard : {"parameters", "gradients"}) {
    RunConfig config = sharded_config(4, "block");
    config.model.layers = 1;
    config.parallel.shard = shard;
    config.parallel.shard_replicas = 2;
    config.parallel.shard_over_replicas = true;
    expect_no_bit_changes(config, /*steps=*/2);
  }
}

// Sites that stay as they are are gathered with the norms; buckets that a rank keeps whole are
// quantised whole.
TEST(Fp8ParamGather, ChangesNoBitBesideWeightsOfOtherKinds) {
  RunConfig config = sharded_config(2, "block");
  config.train.fp8_filter = {"layers.0.attention.*"};
  config.overlap.mode = "manual";
  config.overlap.overlap_param_gather = true;
  config.overlap.param_gather_whole_units = 2;  // the embedding, and both units of layer 0
  expect_no_bit_changes(config);
  EXPECT_EQ(count_ops(plan_of(config), "quantize_weight"), 2);  // fc1 and fc2 of layer 0
}

TEST(Fp8ParamGather, ResumesWithTheSameBits) {
  RunConfig config = sharded_config(3, "tensor");
  const Outcome both = run(config, 2);
  const Outcome first = run(config, 1);
  config.train.fp8_param_gather = false;
  const Outcome second = run(config, 1, {}, {.state = &first.state, .steps_done = 1});
  EXPECT_EQ(second.losses.back(), both.losses.back());
  EXPECT_EQ(second.state.weights, both.state.weights);
}

TEST(Fp8ParamGather, HalvesBytes) {
  RunConfig config = sharded_config(2, "block");
  const RunPlan copies = plan_of(config);
  config.train.fp8_param_gather = false;
  const RunPlan values = plan_of(config);
  EXPECT_EQ(gathered_bytes(values, /*of_copies=*/true), 0);
  EXPECT_EQ(
      2 * gathered_bytes(copies, /*of_copies=*/true) + gathered_bytes(copies, /*of_copies=*/false),
      gathered_bytes(values, /*of_copies=*/false));
  EXPECT_EQ(count_ops(copies, "all_reduce_max"), 1);
  EXPECT_EQ(count_ops(copies, "quantize_weight"), 0);
  EXPECT_EQ(count_ops(copies, "transpose"), 2 * 4);  // layers, matrices
}

// Magnitudes of blocks that ranks share, too: ranks of one GPU have no communication library.
TEST(Fp8ParamGather, NeedsOnlyCopiesIfTheEngineIsCopies) {
  RunConfig config = sharded_config(3, "block");
  config.train.microbatch = 1;
  config.train.global_batch = 3;
  config.train.sequence = 128;
  const Outcome by_library = run(config, 2);
  EXPECT_EQ(count_ops(plan_of(config), "all_reduce_max"), 1);
  config.overlap.comm_engine = "copy";
  expect_same_bits(run(config, 2), by_library);
  const RunPlan plan = plan_of(config);
  EXPECT_EQ(count_ops(plan, "all_reduce_max"), 0);
  EXPECT_EQ(count_ops(plan, "largest_of_blocks"), 1);
}

// A rank keeps the copy of its shard for the whole step: memory is saved if there are many shards.
TEST(Fp8ParamGather, NeedsLessMemoryOnManyRanks) {
  RunConfig config = sharded_config(8, "block");
  const int64_t with_copies = plan_of(config).ranks.front().memory.peak_bytes();
  config.train.fp8_param_gather = false;
  EXPECT_LT(with_copies, plan_of(config).ranks.front().memory.peak_bytes());
}

// Columns of 1 x 32 blocks are not the rows transposed, and one rank has nothing to gather.
TEST(Fp8ParamGather, LeavesValuesWhereCopiesWouldNotDo) {
  RunConfig config = sharded_config(2, "mxfp8");
  EXPECT_GT(gathered_bytes(plan_of(config), /*of_copies=*/true), 0);
  config.train.fp8_weight_blocks = "rows";
  EXPECT_EQ(gathered_bytes(plan_of(config), /*of_copies=*/true), 0);
  EXPECT_EQ(count_ops(plan_of(sharded_config(1, "block")), "all_reduce_max"), 0);
}

// Ranks that update shards of weights gather copies once per step, for all microbatches.
TEST(Fp8ParamGather, ChangesNoBitWhereRanksUpdateShards) {
  struct Case {
    int64_t ranks;
    std::string recipe;
    std::string shard;
    std::string dtype;
  };
  for (const Case& it : {Case{2, "tensor", "optimizer", "bfloat16"},
                         {3, "mxfp8", "gradients", "bfloat16"},
                         {5, "block", "optimizer", "float32"},
                         {8, "tensor", "gradients", "bfloat16"}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {}, {}", it.ranks, it.recipe, it.shard));
    RunConfig config = sharded_config(it.ranks, it.recipe);
    config.parallel.shard = it.shard;
    config.train.dtype = it.dtype;
    config.model.layers = 1;
    config.train.microbatch = 1;
    config.train.global_batch = 2 * it.ranks;
    config.train.sequence = 128;
    expect_no_bit_changes(config, 2);
  }
}

/// Places in the program of rank 0 of the first task and of the last one that `is_one` selects.
std::pair<ptrdiff_t, ptrdiff_t> places_of(const Program& program,
                                          const std::function<bool(const Task&)>& is_one) {
  const auto first = std::ranges::find_if(program.tasks, is_one);
  const auto last = std::find_if(program.tasks.rbegin(), program.tasks.rend(), is_one);
  return {first - program.tasks.begin(), program.tasks.rend() - last - 1};
}

// The copies of a layer arrive while the layer before it computes, or all do at the beginning.
TEST(Fp8ParamGather, OfUpdatedWeightsHidesAsThatOfWeights) {
  RunConfig config = sharded_config(2, "block");
  config.parallel.shard = "optimizer";
  config.train.global_batch = 8;
  config.overlap.mode = "off";
  const Outcome expected = run(config, 2);
  config.overlap.mode = "manual";
  config.overlap.overlap_param_gather = true;
  for (const bool aligned : {false, true}) {
    config.overlap.align_param_gather = aligned;
    config.overlap.overlap_param_gather_with_optimizer_step = aligned;
    const RunPlan plan = plan_of(config);
    const Program& program = plan.ranks.front().programs[kTrainProgram];
    const auto gathers = [&](const Task& task) {
      return program.spec(task).op == "all_gather" && task.label.layer == 1 &&
             is_fp8(program.spec(task).operands[1].dtype);
    };
    const auto products = [&](const Task& task) {
      return program.spec(task).op == "scaled_linear" && task.label.layer == 0 &&
             task.label.microbatch == 0;
    };
    const auto [gather, last_gather] = places_of(program, gathers);
    const auto [first, last] = places_of(program, products);
    EXPECT_EQ(gather, last_gather);
    EXPECT_LT(gather, aligned ? first : last);
    EXPECT_NE(program.tasks[static_cast<size_t>(gather)].stream,
              program.tasks[static_cast<size_t>(first)].stream);
    expect_same_bits(run(config, 2), expected);
  }
}

}  // namespace
}  // namespace braid
