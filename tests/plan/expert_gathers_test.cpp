#include "plan/expert_gathers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// 8 ranks and 8 experts of 2 x 64 x 96 weights per matrix pair and gate, in every layer.
RunPlan plan_of(std::vector<std::string> overrides) {
  overrides.insert(
      overrides.end(),
      {"eval.interval=0", "logging.run_folder=none", "train.microbatch=1", "model.family=llama",
       "model.pattern=*E*E", "model.width=64", "model.heads=4", "model.ffn=256", "model.experts=8",
       "model.experts_per_token=2", "model.expert_ffn=96", "train.global_batch=8",
       "train.dtype=bfloat16", "parallel.ranks=8"});
  const RunConfig config = parse_config("", "experts", overrides);
  validate(config);
  return plan_run(resolve_run(resolved(config), 4096), {.ranks = {0}, .verify = false});
}

std::optional<ExpertGathers> gathers_of(const std::vector<std::string>& overrides) {
  const RunPlan plan = plan_of(overrides);
  return expert_gathers(plan.run, plan.ranks.front().layout);
}

// 8 experts of 3 x 64 x 96 elements: 2 gathers in bf16 and a reduction in fp32, of 7/8 each.
// 64 tokens go to 2 experts each: 128 rows of 64 x 2 bytes, 4 times, of which 7/8 leave the rank.
TEST(ExpertGathers, CountsWhatARankReceives) {
  const std::optional<ExpertGathers> gathers =
      gathers_of({"parallel.shard=parameters", "train.sequence=64"});
  ASSERT_TRUE(gathers);
  EXPECT_EQ(gathers->layer, "layers.1");
  EXPECT_EQ(gathers->gathered_bytes, 8 * 3 * 64 * 96 * (2 + 2 + 4) * 7 / 8);
  EXPECT_EQ(gathers->moved_bytes, 4 * 128 * 64 * 2 * 7 / 8);
  EXPECT_EQ(gathers->expert_ranks, 8);
  EXPECT_EQ(
      describe_expert_gathers(gathers),
      "experts  layers.1: a rank gathers and reduces 1008 KiB of experts per microbatch; with "
      "parallel.expert = 8 it would receive 56.0 KiB of tokens: set parallel.expert = 8\n");
}

// With two experts per rank, a half of the rows moves already.
TEST(ExpertGathers, CountsOnlyRowsThatDoNotMoveAlready) {
  const std::optional<ExpertGathers> gathers =
      gathers_of({"parallel.shard=parameters", "train.sequence=64", "parallel.expert=2"});
  ASSERT_TRUE(gathers);
  EXPECT_EQ(gathers->gathered_bytes, 4 * 3 * 64 * 96 * (2 + 2 + 4) * 3 / 4);
  EXPECT_EQ(gathers->moved_bytes, 4 * 128 * 64 * 2 * 3 / 8);
}

TEST(ExpertGathers, AreCheaperForManyTokens) {
  const std::optional<ExpertGathers> gathers =
      gathers_of({"parallel.shard=parameters", "train.sequence=4096"});
  ASSERT_TRUE(gathers);
  EXPECT_FALSE(gathers->is_cheaper_to_move());
  EXPECT_THAT(describe_expert_gathers(gathers), HasSubstr("of tokens, which is not less\n"));
}

TEST(ExpertGathers, AreNoneWhereARankHoldsItsExpertsWhole) {
  EXPECT_FALSE(gathers_of({"parallel.shard=parameters", "parallel.expert=8", "train.sequence=64"}));
  EXPECT_FALSE(gathers_of({"parallel.shard=gradients", "train.sequence=64"}));
  EXPECT_EQ(describe_expert_gathers(std::nullopt), "");
}

}  // namespace
}  // namespace braid
