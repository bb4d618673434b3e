#include "parallel/alike_ranks.h"

#include <gtest/gtest.h>

#include <string>

namespace braid {
namespace {

TEST(AlikeRanks, TheFirstOfEachKindStandsForAll) {
  const AlikeRanks ranks = alike_ranks(std::vector<std::string>{"b", "a", "b", "c", "a"});
  EXPECT_EQ(ranks, (AlikeRanks{.kind_of = {0, 1, 0, 2, 1}, .stand_ins = {0, 1, 3}}));
  EXPECT_EQ(ranks.num_kinds(), 3u);
  EXPECT_EQ(ranks.stand_in(2), 0);
  EXPECT_EQ(ranks.stand_in(4), 1);
}

TEST(AlikeRanks, WithoutKeysNothingIsKnown) {
  EXPECT_TRUE(alike_ranks(std::vector<int>{}).empty());
}

}  // namespace
}  // namespace braid
