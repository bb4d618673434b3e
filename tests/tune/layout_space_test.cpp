#include "tune/layout_space.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/validate.h"
#include "plan/model_setup.h"
#include "plan/parallel_setup.h"
#include "plan/run_spec.h"
#include "tune/small_search.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

LayoutSpace space_of(const RunConfig& config, const std::string& cluster,
                     const LayoutLimits& limits = {}) {
  return enumerate_layouts(config, resolve_model(config.model, config.train.sequence, 0),
                           parse_cluster(cluster), limits);
}

TEST(LayoutSpace, EveryLayoutIsARun) {
  const RunConfig config = small_search_run(8);
  const LayoutSpace space = space_of(config, "h100x8", {.fixed = {"memory.recompute"}});
  EXPECT_GT(space.layouts.size(), 250u);
  EXPECT_GT(space.num_refused, 0);
  for (const Layout& layout : space.layouts) {
    RunConfig laid_out = with_layout(config, layout);
    ASSERT_NO_THROW(validate(laid_out)) << layout_name(layout);
    laid_out = resolved(laid_out);
    ASSERT_NO_THROW(resolve_run(laid_out, 0)) << layout_name(layout);
    EXPECT_EQ(laid_out.parallel.ranks, 8);
  }
}

// Each microbatch has whole pairs of answers.
TEST(LayoutSpace, OfPairsHasEvenMicrobatches) {
  RunConfig config = small_search_run(8);
  config.preference.loss = "dpo";
  const LayoutSpace space = space_of(config, "h100x8");
  EXPECT_FALSE(space.layouts.empty());
  for (const Layout& layout : space.layouts) {
    EXPECT_EQ(layout.microbatch % 2, 0) << layout_name(layout);
  }
}

/// States of one group, which context ranks can pass but not exchange.
RunConfig hybrid_search_run(int64_t ranks) {
  RunConfig config = small_search_run(ranks);
  config.model.family = "nemotron_h";
  config.model.layers.reset();
  config.model.pattern = "M-*M";
  config.model.mamba_num_heads = 4;
  config.model.mamba_head_dim = 64;
  config.model.ssm_state_size = 16;
  return config;
}

TEST(LayoutSpace, HasBothWaysToShareStates) {
  const auto has = [](const LayoutSpace& space, MambaContext states) {
    return std::ranges::any_of(space.layouts, [&](const Layout& it) {
      return it.context == 2 && it.mamba_context == states;
    });
  };
  RunConfig config = hybrid_search_run(2);
  EXPECT_FALSE(has(space_of(config, "h100x8"), MambaContext::kHeads));
  EXPECT_TRUE(has(space_of(config, "h100x8"), MambaContext::kStates));
  config.model.mamba_n_groups = 2;
  EXPECT_TRUE(has(space_of(config, "h100x8"), MambaContext::kHeads));
  EXPECT_TRUE(has(space_of(config, "h100x8"), MambaContext::kStates));
  const LayoutLimits fixed{.fixed = {"parallel.mamba_context"}};
  EXPECT_FALSE(has(space_of(config, "h100x8", fixed), MambaContext::kStates));
  EXPECT_FALSE(has(space_of(small_search_run(2), "h100x8"), MambaContext::kStates));
}

TEST(LayoutSpace, HasEveryDimensionAndNoLayoutTwice) {
  const LayoutSpace space = space_of(small_search_run(8), "h100x8");
  const auto has = [&](auto&& wanted) { return std::ranges::any_of(space.layouts, wanted); };
  EXPECT_TRUE(has([](const Layout& it) { return it.tensor == 4 && it.data == 2; }));
  EXPECT_TRUE(has([](const Layout& it) {
    return it.context == 2 && it.context_method == ContextExchange::kAllToAll;
  }));
  for (const std::string_view schedule : {"1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    EXPECT_TRUE(has([&](const Layout& it) { return schedule_name(it.schedule) == schedule; }))
        << schedule;
  }
  EXPECT_TRUE(has(
      [](const Layout& it) { return it.shard == ShardKind::kParameters && it.microbatch == 8; }));
  std::vector<std::string> names;
  for (const Layout& layout : space.layouts) {
    names.push_back(layout_name(layout));
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(LayoutSpace, DistributesExpertsOverRanksOfANode) {
  RunConfig config = small_search_run(16);
  config.model.layers.reset();
  config.model.pattern = "attention+moe*2";
  config.model.experts = 12;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 64;
  config.train.global_batch = 16;
  config.parallel.expert = 4;
  config.moe.capacity = 1.5;
  const std::set<std::string, std::less<>> fixed = {"memory.recompute", "train.microbatch",
                                                    "parallel.context", "parallel.pipeline"};
  const LayoutSpace space = space_of(config, "h100x16", {.fixed = fixed});
  std::set<int64_t> sizes;
  for (const Layout& layout : space.layouts) {
    sizes.insert(layout.expert);
    RunConfig laid_out = with_layout(config, layout);
    ASSERT_NO_THROW(validate(laid_out)) << layout_name(layout);
    ASSERT_NO_THROW(resolve_run(resolved(laid_out), 0)) << layout_name(layout);
    EXPECT_EQ(laid_out.moe.capacity, layout.expert == 1 ? 0 : 1.5);
  }
  EXPECT_EQ(sizes, (std::set<int64_t>{1, 2, 4}));  // divide 12 experts, 8 ranks of a node, 16 ranks
  std::set<std::string, std::less<>> all_fixed = fixed;
  all_fixed.insert("parallel.expert");
  for (const Layout& layout : space_of(config, "h100x16", {.fixed = all_fixed}).layouts) {
    EXPECT_EQ(layout.expert, 4);
  }
}

TEST(LayoutSpace, BoundsWhatMakesNoSense) {
  const LayoutSpace space = space_of(small_search_run(16), "h100x16", {.max_microbatch = 2});
  for (const Layout& layout : space.layouts) {
    EXPECT_LE(layout.tensor, 4);   // heads; and a node has 8
    EXPECT_LE(layout.context, 2);  // 1,024 tokens
    EXPECT_LE(layout.microbatch, 2);
    EXPECT_EQ(layout.sequence_parallel, layout.tensor > 1);
  }
}

TEST(LayoutSpace, SevenRanksHaveFewLayouts) {
  RunConfig config = small_search_run(7);
  EXPECT_TRUE(space_of(config, "h100x7").layouts.empty());  // 7 divides neither heads nor batch
  config.train.global_batch = 14;
  const LayoutSpace space = space_of(config, "h100x7");
  ASSERT_FALSE(space.layouts.empty());
  for (const Layout& layout : space.layouts) {
    EXPECT_EQ(layout.data, 7);
  }
}

TEST(LayoutSpace, FixedKeysStay) {
  RunConfig config = small_search_run(8);
  config.parallel.tensor = 2;
  config.parallel.schedule = "zb-h1";
  config.memory.recompute = "norms";
  const LayoutSpace space = space_of(
      config, "h100x8", {.fixed = {"parallel.tensor", "parallel.schedule", "memory.recompute"}});
  ASSERT_FALSE(space.layouts.empty());
  for (const Layout& layout : space.layouts) {
    EXPECT_EQ(layout.tensor, 2);
    EXPECT_EQ(layout.schedule, ScheduleKind::kZbH1);
    EXPECT_EQ(layout.recompute, RecomputeChoice::kNorms);
  }
  EXPECT_THAT(
      message_of<ConfigError>([&] { space_of(config, "h100x8", {.fixed = {"train.steps"}}); }),
      HasSubstr("the search does not choose this key"));
}

// 16 data ranks on two nodes: shards on all of them, or two copies.
TEST(LayoutSpace, CopiesOfShardsMayShareTheirState) {
  RunConfig config = small_search_run(16);
  config.train.global_batch = 16;
  LayoutLimits limits{.max_tensor = 1,
                      .max_context = 1,
                      .max_microbatch = 1,
                      .fixed = {"memory.recompute", "parallel.pipeline"}};
  std::set<std::string> names;
  for (const Layout& layout : space_of(config, "h100x16", limits).layouts) {
    RunConfig laid_out = with_layout(config, layout);
    ASSERT_NO_THROW(validate(laid_out)) << layout_name(layout);
    names.insert(layout_name(layout));
  }
  EXPECT_EQ(names.size(), 10u);
  EXPECT_TRUE(names.contains("dp16 shard=optimizer copies=2 mb1"));
  EXPECT_TRUE(names.contains("dp16 shard=optimizer copies=2 shared mb1"));
  config.parallel.shard_over_replicas = true;
  limits.fixed.insert("parallel.shard_over_replicas");
  for (const Layout& layout : space_of(config, "h100x16", limits).layouts) {
    EXPECT_TRUE(layout.shard_over_replicas);
    EXPECT_NE(layout.shard, ShardKind::kNone);
  }
}

TEST(LayoutSpace, TypesOfMomentsAreChosenOnlyOnRequest) {
  RunConfig config = small_search_run(4);
  config.optimizer.moments_dtype = "bfloat16";
  const LayoutSpace as_given = space_of(config, "h100x4");
  for (const Layout& layout : as_given.layouts) {
    EXPECT_EQ(layout.moments, DType::kBF16);
  }
  const LayoutSpace both = space_of(config, "h100x4", {.varied = {"optimizer.moments_dtype"}});
  EXPECT_EQ(both.layouts.size(), 2 * as_given.layouts.size());
  EXPECT_EQ(std::ranges::count(both.layouts, DType::kF32, &Layout::moments),
            std::ssize(as_given.layouts));
  EXPECT_THAT(
      message_of<ConfigError>([&] { space_of(config, "h100x4", {.varied = {"train.dtype"}}); }),
      HasSubstr("--vary \"train.dtype\": the search does not choose this key"));
}

TEST(LayoutSpace, TypesOfGradientsAreChosenOnlyOnRequestAndForBf16) {
  RunConfig config = small_search_run(4);
  for (const std::string dtype : {"float32", "bfloat16"}) {
    config.train.dtype = dtype;
    const LayoutSpace as_given = space_of(config, "h100x4");
    EXPECT_EQ(std::ranges::count(as_given.layouts, DType::kBF16, &Layout::main_grads), 0);
    const LayoutSpace both = space_of(config, "h100x4", {.varied = {"optimizer.main_grads_dtype"}});
    EXPECT_EQ(std::ranges::count(both.layouts, DType::kF32, &Layout::main_grads),
              std::ssize(as_given.layouts));
    EXPECT_EQ(std::ranges::count(both.layouts, DType::kBF16, &Layout::main_grads),
              dtype == "bfloat16" ? std::ssize(as_given.layouts) : 0);
  }
}

TEST(LayoutSpace, UsualLayoutsAreThoseOfPublishedRuns) {
  const Layout recipe{.tensor = 4,
                      .context = 2,
                      .data = 2,
                      .pipeline = 4,
                      .virtual_stages = 5,
                      .schedule = ScheduleKind::kInterleaved,
                      .shard = ShardKind::kOptimizer,
                      .sequence_parallel = true};
  EXPECT_TRUE(is_usual(recipe));  // llama-70b on 64 H100 in NVIDIA's recipes
  EXPECT_TRUE(is_usual({.data = 8, .shard = ShardKind::kParameters}));
  EXPECT_FALSE(is_usual({.data = 8, .shard_replicas = 2, .shard = ShardKind::kParameters}));
  Layout other = recipe;
  other.schedule = ScheduleKind::kDualpipeV;
  EXPECT_FALSE(is_usual(other));
  other = recipe;
  other.microbatch = 2;
  EXPECT_FALSE(is_usual(other));
  other = recipe;
  other.context_method = ContextExchange::kAllToAll;
  EXPECT_FALSE(is_usual(other));
  other = recipe;
  other.mamba_context = MambaContext::kStates;
  EXPECT_FALSE(is_usual(other));
}

}  // namespace
}  // namespace braid
