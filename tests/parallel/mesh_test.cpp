#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

TEST(Mesh, PositionAndRankAreInverses) {
  const Mesh mesh({.tensor = 2, .context = 3, .data = 4, .pipeline = 5});
  ASSERT_EQ(mesh.num_ranks(), 120);
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    EXPECT_EQ(mesh.rank_at(mesh.position(rank)), rank);
  }
}

// Megatron's order tp-cp-ep-dp-pp: tensor neighbours are adjacent ranks, pipeline neighbours
// farthest apart.
TEST(Mesh, GroupsFollowMegatronsOrder) {
  const Mesh mesh({.tensor = 2, .context = 1, .data = 2, .pipeline = 2});
  EXPECT_EQ(mesh.group("tensor", 5).ranks, (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.group("data", 5).ranks, (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.group("pipeline.forward", 5).ranks, (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.group("context", 5).ranks, (std::vector<int>{5}));
  EXPECT_EQ(mesh.group("data", 5).kind, GroupKind::kData);
}

constexpr std::array<std::string_view, 25> kGroupNames{"tensor",
                                                       "tensor.kv",
                                                       "context",
                                                       "context.inner",
                                                       "context.outer",
                                                       "data",
                                                       "gradient",
                                                       "gradient.shard",
                                                       "gradient.replica",
                                                       "pipeline.forward",
                                                       "embedding",
                                                       "pipeline.backward",
                                                       "model",
                                                       "model.shard",
                                                       "loss",
                                                       "world",
                                                       "expert.exchange",
                                                       "expert.host",
                                                       "expert.rail",
                                                       "expert.tensor",
                                                       "expert.data",
                                                       "expert.data.shard",
                                                       "expert.data.replica",
                                                       "expert.model",
                                                       "expert.model.shard"};

// Each rank is in its own groups, and all members of a group agree on it.
TEST(Mesh, GroupsPartitionTheRanks) {
  const Mesh mesh({.tensor = 4,
                   .context = 4,
                   .data = 3,
                   .pipeline = 3,
                   .context_inner = 2,
                   .replicas = 3,
                   .kv_replicas = 2,
                   .expert = 6,
                   .expert_tensor = 2,
                   .expert_replicas = 2,
                   .expert_hosts = 3});
  for (const std::string_view name : kGroupNames) {
    for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
      const Group group = mesh.group(name, rank);
      ASSERT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end())) << name;
      ASSERT_EQ(mesh.first_in(name, rank), group.ranks.front()) << name << " of rank " << rank;
      const bool middle_stage = name == "embedding" && mesh.position(rank).pipeline == 1;
      ASSERT_EQ(std::count(group.ranks.begin(), group.ranks.end(), rank), middle_stage ? 0 : 1)
          << name << " of rank " << rank;
      for (const int member : group.ranks) {
        ASSERT_EQ(mesh.group(name, member).ranks, group.ranks) << name;
      }
    }
  }
}

TEST(Mesh, GroupsOfTwoDimensions) {
  // rank = ((pipeline * 2 + data) * 4 + context) * 2 + tensor
  const Mesh mesh(
      {.tensor = 2, .context = 4, .data = 2, .pipeline = 1, .context_inner = 2, .replicas = 2});
  EXPECT_EQ(mesh.group("gradient", 1).ranks, (std::vector<int>{1, 3, 5, 7, 9, 11, 13, 15}));
  EXPECT_EQ(mesh.group("gradient.shard", 11).ranks, (std::vector<int>{9, 11, 13, 15}));
  EXPECT_EQ(mesh.group("gradient.replica", 11).ranks, (std::vector<int>{3, 11}));
  EXPECT_EQ(mesh.group("context.inner", 12).ranks, (std::vector<int>{12, 14}));
  EXPECT_EQ(mesh.group("context.outer", 12).ranks, (std::vector<int>{8, 12}));
  EXPECT_EQ(mesh.group("data", 12).ranks, (std::vector<int>{4, 12}));
  EXPECT_EQ(mesh.index_in("gradient", 12), 6);
}

// Expert ranks are neighbours, whatever tensor and data ranks they are.
TEST(Mesh, ExpertsSeeTheRanksOfAStageInAnotherOrder) {
  const Mesh mesh({.tensor = 2, .data = 4, .pipeline = 2, .expert = 4});
  EXPECT_EQ(mesh.group("expert.exchange", 6).ranks, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.group("expert.exchange", 6).kind, GroupKind::kExpert);
  EXPECT_EQ(mesh.group("expert.tensor", 6).ranks, (std::vector<int>{6}));
  EXPECT_EQ(mesh.group("expert.data", 6).ranks, (std::vector<int>{2, 6}));
  EXPECT_EQ(mesh.group("expert.data", 6).kind, GroupKind::kData);
  EXPECT_EQ(mesh.group("expert.model", 6).ranks, (std::vector<int>{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(mesh.group("expert.model.shard", 6).ranks.size(), 16u);
  EXPECT_EQ(mesh.group("gradient", 6).ranks, (std::vector<int>{0, 2, 4, 6}));
}

// Tensor ranks of experts may be more or fewer than those of attention.
TEST(Mesh, ExpertTensorMayDifferFromTensor) {
  const Mesh mesh({.tensor = 1, .data = 16, .expert = 4, .expert_tensor = 2, .expert_replicas = 2});
  EXPECT_EQ(mesh.sizes().expert_data(), 2);
  const ExpertPosition at = mesh.expert_position(13);
  EXPECT_EQ(std::tuple(at.expert_tensor, at.expert, at.expert_data), std::tuple(1, 2, 1));
  EXPECT_EQ(mesh.group("expert.exchange", 13).ranks,
            (std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(mesh.group("expert.tensor", 13).ranks, (std::vector<int>{12, 13}));
  EXPECT_EQ(mesh.group("expert.tensor", 13).kind, GroupKind::kTensor);
  EXPECT_EQ(mesh.group("expert.data", 13).ranks, (std::vector<int>{5, 13}));
  EXPECT_EQ(mesh.group("expert.data.shard", 13).ranks, (std::vector<int>{13}));
  EXPECT_EQ(mesh.group("expert.data.replica", 13).ranks, (std::vector<int>{5, 13}));
}

// The ranks of a host, and those with the same place on each host.
TEST(Mesh, RanksThatExchangeRowsAreOnHosts) {
  const Mesh mesh({.data = 16, .pipeline = 2, .expert = 8, .expert_tensor = 2, .expert_hosts = 4});
  EXPECT_EQ(mesh.group("expert.host", 22).ranks, (std::vector<int>{20, 21, 22, 23}));
  EXPECT_EQ(mesh.group("expert.rail", 22).ranks, (std::vector<int>{18, 22, 26, 30}));
  EXPECT_EQ(mesh.group("expert.rail", 22).kind, GroupKind::kExpert);
  EXPECT_EQ(mesh.index_in("expert.rail", 22), 1);
  const Mesh one_host({.data = 8, .expert = 4});
  EXPECT_EQ(one_host.group("expert.host", 5).ranks, one_host.group("expert.exchange", 5).ranks);
  EXPECT_EQ(one_host.group("expert.rail", 5).ranks, (std::vector<int>{5}));
}

TEST(Mesh, ExpertsThatDoNotDivideAStageAreABug) {
  EXPECT_THROW(Mesh({.data = 4, .pipeline = 2, .expert = 8}), InternalError);
  EXPECT_THROW(Mesh({.data = 4, .expert = 2, .expert_tensor = 4}), InternalError);
  EXPECT_THROW(Mesh({.data = 4, .expert = 2, .expert_replicas = 4}), InternalError);
  EXPECT_THROW(Mesh({.data = 4, .expert = 4, .expert_hosts = 3}), InternalError);
}

TEST(Mesh, UnknownGroupIsAnError) {
  EXPECT_THROW(Mesh(MeshSizes{}).group("everyone", 0), InternalError);
  EXPECT_THROW(Mesh(MeshSizes{}).group("experts", 0), InternalError);
}

TEST(Mesh, SizesThatDoNotDivideAreRefused) {
  EXPECT_THROW(Mesh({.context = 4, .context_inner = 3}), ConfigError);
  EXPECT_THROW(Mesh({.data = 4, .replicas = 3}), ConfigError);
}

TEST(Mesh, SizesBelowOneAreRefused) {
  EXPECT_THROW(Mesh({.tensor = 0}), ConfigError);
  EXPECT_THROW(Mesh({.data = -2}), ConfigError);
  EXPECT_THROW(Mesh({.context = 0}), ConfigError);
  EXPECT_THROW(Mesh({.pipeline = 0}), ConfigError);
}

}  // namespace
}  // namespace braid
