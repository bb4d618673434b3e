#include "model/expert_shard.h"

#include <bit>
#include <utility>

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

/// The share of choices that reach the first experts, by all choices of groups and experts.
double counted_share(const ModelSpec& spec, int64_t hosts) {
  const int64_t of_group = spec.experts / spec.router.groups;
  double share = 0;
  double num_groups = 0;
  for (int64_t kept = 0; kept < int64_t{1} << spec.router.groups; ++kept) {
    if (std::popcount(static_cast<uint64_t>(kept)) != spec.router.kept_groups) {
      continue;
    }
    double reach = 0;
    double all = 0;
    for (int64_t chosen = 0; chosen < int64_t{1} << spec.experts; ++chosen) {
      bool fits = std::popcount(static_cast<uint64_t>(chosen)) == spec.experts_per_token;
      bool reaches = false;
      for (int64_t e = 0; e < spec.experts; ++e) {
        const bool is_chosen = (chosen >> e & 1) == 1;
        fits = fits && (!is_chosen || (kept >> (e / of_group) & 1) == 1);
        reaches = reaches || (is_chosen && e < spec.experts / hosts);
      }
      all += fits ? 1 : 0;
      reach += fits && reaches ? 1 : 0;
    }
    share += reach / all;
    ++num_groups;
  }
  return share / num_groups;
}

TEST(ShareOfHost, IsThatOfAllChoices) {
  ModelSpec spec = with_experts();
  for (const auto& [groups, kept] :
       {std::pair{1, 1}, {2, 1}, {2, 2}, {3, 2}, {4, 2}, {4, 3}, {6, 4}, {6, 2}, {12, 4}}) {
    spec.router.groups = groups;
    spec.router.kept_groups = kept;
    for (const int64_t hosts : {1, 2, 3, 4, 6, 12}) {
      const int64_t of_group = spec.experts / groups;
      const int64_t of_host = spec.experts / hosts;
      if (of_group % of_host == 0 || of_host % of_group == 0) {
        EXPECT_NEAR(share_of_host(spec, hosts), counted_share(spec, hosts), 1e-12)
            << groups << " " << kept << " " << hosts;
      }
    }
  }
  spec.router = {.groups = 4, .kept_groups = 2};  // of 3 experts, and hosts have 2
  EXPECT_NEAR(share_of_host(spec, 6), 1 - 210.0 / 495, 1e-12) << "as without groups";
}

// Of the 495 choices of 4 of 12 experts, 15 have none of 6, 70 none of 4, and 210 none of 2.
TEST(HostRoom, IsThatOfExpectedTokensTimesTheCapacity) {
  const ModelSpec spec = with_experts();
  const HostRoom all = host_room(spec, {.size = 4, .hosts = 2}, 10);
  EXPECT_EQ(all.block_rows, 10);
  EXPECT_EQ(all.rows, 2 * 10 * 4);
  EXPECT_EQ(all.expected_slots, 19) << "2 * 10 * (1 - 15 / 495), rounded";
  EXPECT_EQ(all.expected_rows, 40);
  const HostRoom of_three = host_room(spec, {.size = 3, .capacity = 1.1, .hosts = 3}, 10);
  EXPECT_EQ(of_three.block_rows, 10) << "10 * (1 - 70 / 495) * 1.1 = 9.4";
  EXPECT_EQ(of_three.rows, 44);
  EXPECT_EQ(of_three.expected_slots, 26);
  const HostRoom tight = host_room(spec, {.size = 6, .capacity = 0.5, .hosts = 6}, 10);
  EXPECT_EQ(tight.block_rows, 3) << "10 * (1 - 210 / 495) * 0.5 = 2.9";
  EXPECT_EQ(tight.rows, 20);
  EXPECT_EQ(tight.expected_slots, 18);
  EXPECT_EQ(tight.expected_rows, 20);
}

// As far as steps run again with more room, all rows fit.
TEST(HostRoom, OfTheFullCapacityIsForAllRows) {
  ModelSpec spec = with_experts();
  for (const int64_t groups : {1, 4}) {
    spec.router.groups = groups;
    spec.router.kept_groups = groups == 1 ? 1 : 2;
    for (const int64_t hosts : {2, 4, 12}) {
      ExpertShard shard{.size = 12, .hosts = hosts};
      const HostRoom all = host_room(spec, shard, 10);
      shard.capacity = full_capacity(spec, shard);
      EXPECT_EQ(host_room(spec, shard, 10).block_rows, all.block_rows);
      EXPECT_EQ(host_room(spec, shard, 10).rows, all.rows);
    }
  }
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
  EXPECT_EQ(message_of<ConfigError>([&] { check_expert_parallel(spec, {.size = 6, .hosts = 4}); }),
            "moe.exchange_hosts = 4: must divide parallel.expert = 6; the nearest that does is 3");
  ModelSpec drops = spec;
  drops.router.expert_capacity = 1.5;
  EXPECT_EQ(message_of<ConfigError>([&] { check_expert_parallel(drops, {.size = 6, .hosts = 2}); }),
            "moe.expert_capacity = 1.5: rows that experts drop are not known where one copy of a "
            "token goes to a host (moe.exchange = \"hosts\"); set moe.exchange = \"blocks\"");
}

}  // namespace
}  // namespace braid
