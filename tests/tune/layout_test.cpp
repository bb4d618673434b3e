#include "tune/layout.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/load.h"
#include "config/reference.h"
#include "tune/small_search.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(Layout, NamesSayWhatIsSplit) {
  EXPECT_EQ(layout_name({}), "mb1");
  EXPECT_EQ(layout_name({.tensor = 4,
                         .context = 2,
                         .data = 2,
                         .pipeline = 4,
                         .virtual_stages = 5,
                         .shard_replicas = 2,
                         .schedule = ScheduleKind::kInterleaved,
                         .shard = ShardKind::kOptimizer,
                         .recompute = RecomputeChoice::kNorms,
                         .account_for_loss = true}),
            "tp4 pp4 v5 loss=layer cp2 ring dp2 shard=optimizer copies=2 mb1 recompute=norms");
  EXPECT_EQ(layout_name({.pipeline = 2,
                         .virtual_stages = 2,
                         .microbatch = 3,
                         .schedule = ScheduleKind::kZbV,
                         .account_for_embedding = true,
                         .account_for_loss = true}),
            "pp2 zb-v ends=layers mb3");
}

TEST(Layout, NamesSayWhatCopiesShareAndHowMomentsAreKept) {
  EXPECT_EQ(layout_name({.data = 8,
                         .shard_replicas = 2,
                         .shard = ShardKind::kOptimizer,
                         .shard_over_replicas = true,
                         .moments = DType::kBF16}),
            "dp8 shard=optimizer copies=2 shared moments=bfloat16 mb1");
  const Layout layout{.data = 8, .moments = DType::kBF16};
  const RunConfig config = small_search_run(8);
  EXPECT_THAT(layout_overrides(config, layout),
              UnorderedElementsAre("parallel.ranks=8", "parallel.data=8",
                                   "optimizer.moments_dtype=bfloat16"));
  EXPECT_EQ(layout_of(with_layout(config, layout)), layout);
}

// Ranks send bf16 gradients in bf16.
TEST(Layout, NarrowGradientsAreReducedInTheirType) {
  const Layout layout{.data = 8, .main_grads = DType::kBF16};
  EXPECT_EQ(layout_name(layout), "dp8 grads=bfloat16 mb1");
  const RunConfig config = small_search_run(8);
  EXPECT_THAT(layout_overrides(config, layout),
              UnorderedElementsAre("parallel.ranks=8", "parallel.data=8",
                                   "optimizer.main_grads_dtype=bfloat16",
                                   "parallel.grad_reduce_dtype=bfloat16"));
  EXPECT_EQ(layout_of(with_layout(config, layout)), layout);
}

TEST(Layout, OverridesMakeTheSameRun) {
  const RunConfig config = small_search_run(8);
  const Layout layout{.tensor = 2,
                      .data = 2,
                      .pipeline = 2,
                      .microbatch = 2,
                      .shard = ShardKind::kGradients,
                      .recompute = RecomputeChoice::kFull,
                      .sequence_parallel = true};
  const std::vector<std::string> overrides = layout_overrides(config, layout);
  EXPECT_THAT(overrides,
              UnorderedElementsAre("train.microbatch=2", "parallel.ranks=8", "parallel.data=2",
                                   "parallel.tensor=2", "parallel.pipeline=2",
                                   "parallel.sequence_parallel=true", "parallel.shard=gradients",
                                   "memory.recompute=full"));
  EXPECT_EQ(parse_config(to_toml(config), "run.toml", overrides), with_layout(config, layout));
}

TEST(Layout, OverridesUndoWhatTheRunFileHas) {
  RunConfig config = small_search_run(8);
  config.parallel.tensor = 4;
  config.parallel.context_inner = 2;
  config.memory.recompute = "full";
  config.memory.recompute_layers = 2;
  const Layout layout{.data = 8};
  EXPECT_EQ(parse_config(to_toml(config), "run.toml", layout_overrides(config, layout)),
            with_layout(config, layout));
}

TEST(Layout, OnlySearchedKeysCanBeFixed) {
  EXPECT_NO_THROW(check_searched_key("parallel.tensor"));
  EXPECT_THAT(
      message_of<ConfigError>([] { check_searched_key("parallel.tensr"); }),
      AllOf(HasSubstr("--fix \"parallel.tensr\""), HasSubstr("did you mean \"parallel.tensor\"?")));
  EXPECT_NO_THROW(check_varied_key("optimizer.moments_dtype"));
  EXPECT_NO_THROW(check_varied_key("optimizer.main_grads_dtype"));
  EXPECT_THAT(
      message_of<ConfigError>([] { check_varied_key("parallel.tensor"); }),
      HasSubstr("--vary \"parallel.tensor\": the search does not choose this key; on request "
                "it chooses optimizer.moments_dtype, optimizer.main_grads_dtype"));
}

}  // namespace
}  // namespace braid
