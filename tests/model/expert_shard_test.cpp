#include "model/expert_shard.h"

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/layer_pattern.h"

namespace braid {
namespace {

ModelSpec with_experts() {
  return {.layers = LayerPattern::parse("attention+moe*2"),
          .experts = 12,
          .experts_per_token = 4,
          .expert_ffn = 10};
}

TEST(ExpertRoom, IsForAllRowsThatCanCome) {
  const ModelSpec spec = with_experts();
  EXPECT_EQ(expert_room(spec, {.size = 2}, 10), 2 * 10 * 4);
  EXPECT_EQ(expert_room(spec, {.size = 4}, 10), 4 * 10 * 3) << "three experts on a rank";
  EXPECT_EQ(expert_room(spec, {.size = 12}, 10), 12 * 10);
  EXPECT_EQ(expert_room(spec, {.size = 2, .tensor = 2}, 10), 4 * 10 * 4);
}

TEST(ExpertRoom, IsAMultipleOfEqualLoads) {
  const ModelSpec spec = with_experts();
  EXPECT_EQ(expert_room(spec, {.size = 4, .capacity = 1.0}, 10), 40);
  EXPECT_EQ(expert_room(spec, {.size = 4, .capacity = 1.26}, 10), 51);
  EXPECT_EQ(expert_room(spec, {.size = 4, .tensor = 2, .capacity = 1.0}, 10), 80);
  EXPECT_EQ(expert_room(spec, {.size = 4, .capacity = 100}, 10), 120) << "no more can come";
}

// Each of 4 ranks has a block for each other one, and a rank as many rows as its blocks.
TEST(ExpertRoom, IsSharedByTheBlocksOfRanks) {
  const ModelSpec spec = with_experts();
  EXPECT_EQ(rows_of_block(spec, {.size = 4}, 10), 0) << "there are none";
  EXPECT_EQ(rows_of_block(spec, {.size = 4, .blocks = true}, 10), 30) << "all rows of a pair";
  EXPECT_EQ(expert_room(spec, {.size = 4, .blocks = true}, 10), 120);
  const auto tight = [](int64_t tensor) {
    return ExpertShard{.size = 4, .tensor = tensor, .capacity = 1.26, .blocks = true};
  };
  EXPECT_EQ(rows_of_block(spec, tight(1), 10), 13) << "10 * 1.26, rounded up";
  EXPECT_EQ(expert_room(spec, tight(1), 10), 52);
  EXPECT_EQ(rows_of_block(spec, tight(2), 10), 13);
  EXPECT_EQ(expert_room(spec, tight(2), 10), 104);
  ModelSpec limited = spec;
  limited.router.expert_capacity = 1.25;  // 5 rows of each of 3 experts
  EXPECT_EQ(rows_of_block(limited, {.size = 4, .blocks = true}, 10), 15);
}

// 10 tokens with 4 of 12 experts are 3.33 rows of each expert with equal loads.
TEST(RowsOfExpert, AreThoseOfEqualLoadsTimesTheCapacityRoundedUp) {
  ModelSpec spec = with_experts();
  const auto rows = [&](double capacity) {
    spec.router.expert_capacity = capacity;
    return rows_of_expert(spec, 10);
  };
  EXPECT_EQ(rows(0), 10) << "no limit: every token";
  EXPECT_EQ(rows(1), 4);
  EXPECT_EQ(rows(1.25), 5);
  EXPECT_EQ(rows(0.9), 3);
  EXPECT_EQ(rows(0.001), 1);
  EXPECT_EQ(rows(2.9), 10);
  EXPECT_EQ(rows(1e4), 10);
}

TEST(ExpertRoom, IsForAllRowsThatExpertsTake) {
  ModelSpec spec = with_experts();
  spec.router.expert_capacity = 1.25;  // 5 rows of the 10 tokens of each rank
  EXPECT_EQ(expert_room(spec, {.size = 2}, 10), 2 * 6 * 5);
  EXPECT_EQ(expert_room(spec, {.size = 4}, 10), 4 * 3 * 5);
  EXPECT_EQ(expert_room(spec, {.size = 12}, 10), 12 * 5);
  EXPECT_EQ(expert_room(spec, {.size = 6, .tensor = 2}, 10), 12 * 2 * 5);
  spec.router.expert_capacity = 0.3;  // one row
  EXPECT_EQ(expert_room(spec, {.size = 2}, 10), 2 * 6);
}

TEST(ExpertParallel, NamesTheNearestThatFits) {
  const ModelSpec spec = with_experts();
  EXPECT_NO_THROW(check_expert_parallel(spec, {.size = 6, .tensor = 5}));
  EXPECT_EQ(message_of<ConfigError>([&] { check_expert_parallel(spec, {.size = 5}); }),
            "parallel.expert = 5: must divide model.experts = 12; the nearest that does is 4");
  EXPECT_EQ(
      message_of<ConfigError>([&] { check_expert_parallel(spec, {.tensor = 4}); }),
      "parallel.expert_tensor = 4: must divide model.expert_ffn = 10; the nearest that does is 5");
  EXPECT_EQ(message_of<ConfigError>([&] { check_expert_parallel({.layers = 2}, {.size = 2}); }),
            "parallel.expert = 2: the model has no experts; set it to 1");
}

}  // namespace
}  // namespace braid
