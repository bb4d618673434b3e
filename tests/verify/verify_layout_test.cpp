#include "verify/verify_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "config/validate.h"
#include "model/families.h"
#include "plan/more_room.h"
#include "plan/run_plan.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

bool changes(const RunPlan& plan, std::string_view pass) {
  return std::ranges::any_of(plan.ranks.front().passes, [&](const PassRecord& record) {
    return record.name == pass && record.report.changed;
  });
}

// A comparison of products that are whole, and of activations that stay, would say nothing of a
// run whose products are cut, and whose activations leave.
TEST(VerifyLayout, CutsAndMovesInTheSmallModelWhatIsLargeInTheRun) {
  RunConfig config = small_config();
  config.parallel.ranks = 2;
  config.parallel.tensor = 2;
  config.parallel.sequence_parallel = true;
  config.train.sequence = 512;
  config.overlap.mode = "manual";
  config.overlap.tp_comm_overlap = true;
  config.memory.offload_layers = 1;
  validate(config);
  const RunPlan plan = plan_run(resolve_run(shrunken(resolved(config)), 0));
  EXPECT_TRUE(changes(plan, "ring_exchange"));
  EXPECT_TRUE(changes(plan, "bulk_overlap"));
  EXPECT_TRUE(changes(plan, "offload"));
}

TEST(VerifyLayout, KeepsTheScalingOfRotaryFrequencies) {
  RunConfig config = small_config();
  config.model.rope_type = "yarn";
  config.model.rope_factor = 4.0;
  config.model.rope_original_max_position_embeddings = 64;
  config.model.rope_truncate = false;
  const RunSpec given = resolve_run(resolved(config), 50);
  ASSERT_EQ(given.model.rope_scaling.type, RopeType::kYarn);
  EXPECT_EQ(resolve_run(shrunken(resolved(config)), 0).model.rope_scaling,
            given.model.rope_scaling);
  config.model = {.preset = "llama-8b"};
  EXPECT_EQ(resolve_run(shrunken(resolved(config)), 0).model.rope_scaling,
            find_preset("llama-8b").spec.rope_scaling);
}

// A window hides the same part of the small model's sequences, which are 4 tokens per rank.
TEST(VerifyLayout, KeepsThePartOfASequenceThatAWindowHides) {
  RunConfig config;
  config.model = {.preset = "mistral-7b"};
  config.logging.run_folder = "none";
  config.train.sequence = 16384;
  config.parallel.ranks = 8;
  config.parallel.context = 8;
  const ModelSpec small = resolve_run(shrunken(resolved(config)), 0).model;
  EXPECT_EQ(small.layers.text(), "sliding+mlp*32");
  EXPECT_EQ(small.sliding_window, 8);
  config.model.sliding_window = 100;
  EXPECT_EQ(resolve_run(shrunken(resolved(config)), 0).model.sliding_window, 2);
  config.model.sliding_window = 0;
  EXPECT_EQ(resolve_run(shrunken(resolved(config)), 0).model.sliding_window, 0);
}

// The schedule of 7 microbatches is another than that of 6.
TEST(VerifyLayout, KeepsTheMicrobatchesOrTheirLastGroup) {
  const auto microbatches = [](int64_t pipeline, int64_t all) {
    RunConfig config = small_config();
    config.model.layers = pipeline;
    config.parallel.ranks = pipeline;
    config.parallel.pipeline = pipeline;
    config.train.microbatch = 1;
    config.train.global_batch = all;
    validate(config);
    return num_microbatches(shrunken(resolved(config)));
  };
  EXPECT_EQ(microbatches(3, 7), 7);
  EXPECT_EQ(microbatches(3, 5), 5);
  EXPECT_EQ(microbatches(3, 23), 11);  // 7 groups and 2: 3 groups and 2
  EXPECT_EQ(microbatches(2, 513), 5);  // 256 groups and 1: 2 groups and 1
  EXPECT_EQ(microbatches(4, 64), 8);
}

TEST(VerifyLayout, KeepsBothKindsOfBiasesOfRouters) {
  RunConfig config = small_config();
  config.model.experts = 4;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 8;
  for (const bool first : {false, true}) {
    config.model.router_bias = first;
    config.model.router_logit_bias = !first;
    const RouterSpec router = resolve_run(shrunken(resolved(config)), 0).model.router;
    EXPECT_EQ(router.bias, first);
    EXPECT_EQ(router.logit_bias, !first);
  }
}

RunConfig with_expert_ranks() {
  RunConfig config = small_config();
  config.model.experts = 4;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 8;
  config.parallel.ranks = 2;
  config.parallel.expert = 2;
  return config;
}

// What a rank does with rows that it has no room for is not part of the layout.
TEST(VerifyLayout, GivesRanksRoomForAllRowsOfExperts) {
  RunConfig config = with_expert_ranks();
  config.moe.capacity = 0.5;
  for (const char* const on_overflow : {"rerun", "error", "drop"}) {
    config.moe.on_overflow = on_overflow;
    validate(config);
    const RunSpec run = resolve_run(shrunken(resolved(config)), 0);
    EXPECT_TRUE(may_overflow(run));
    EXPECT_LT(compare_with_one_rank(run, {.steps = 1}).worst_gradient(), 1e-12) << on_overflow;
  }
}

// Ranks that share a sequence number its tokens otherwise than one rank.
TEST(VerifyLayout, DoesNotForceTheChoiceOfExperts) {
  RunConfig config = with_expert_ranks();
  config.parallel.context = 2;
  config.moe.force_balance = true;
  validate(config);
  const RunSpec run = resolve_run(shrunken(resolved(config)), 0);
  EXPECT_LT(compare_with_one_rank(run, {.steps = 1}).worst_gradient(), 1e-12);
}

}  // namespace
}  // namespace braid
