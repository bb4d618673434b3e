#include "parallel/mesh.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(mesh.tensor_group(5).ranks, (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.data_group(5).ranks, (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.pipeline_group(5).ranks, (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.context_group(5).ranks, (std::vector<int>{5}));
  EXPECT_EQ(mesh.data_group(5).kind, GroupKind::kData);
}

TEST(Mesh, SizesBelowOneAreRefused) {
  EXPECT_THROW(Mesh({.tensor = 0}), ConfigError);
  EXPECT_THROW(Mesh({.data = -2}), ConfigError);
  EXPECT_THROW(Mesh({.context = 0}), ConfigError);
  EXPECT_THROW(Mesh({.pipeline = 0}), ConfigError);
}

}  // namespace
}  // namespace braid
