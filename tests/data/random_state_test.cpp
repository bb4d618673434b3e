#include "data/random_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace braid {
namespace {

using ::testing::ElementsAre;

std::vector<int> permutation(int size, uint64_t seed) {
  std::vector<int> values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  RandomState(seed).shuffle(std::span(values));
  return values;
}

// numpy.random.RandomState(seed).permutation(10)
TEST(RandomState, ShufflesAsNumpyDoes) {
  EXPECT_THAT(permutation(10, 0), ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
  EXPECT_THAT(permutation(10, 42), ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6));
}

TEST(RandomState, UsesTheLow32BitsOfTheSeed) {
  EXPECT_EQ(permutation(100, 42), permutation(100, (uint64_t{7} << 32) | 42));
  EXPECT_NE(permutation(100, 42), permutation(100, 43));
}

// The first outputs of MT19937 with its customary seed, from the reference implementation.
TEST(RandomState, DrawsTheReferenceSequence) {
  RandomState state(5489);
  EXPECT_EQ(state.next_u32(), 3499211612u);
  EXPECT_EQ(state.next_u32(), 581869302u);
}

TEST(RandomState, DrawsTwoWordsHighFirstForLargeRanges) {
  RandomState words(7);
  const uint64_t high = words.next_u32();
  const uint64_t low = words.next_u32();
  RandomState state(7);
  EXPECT_EQ(state.next_at_most(UINT64_MAX), (high << 32) | low);
  EXPECT_EQ(state.next_u32(), words.next_u32());
}

TEST(RandomState, StaysInRangeAndReachesBothEnds) {
  RandomState state(1);
  std::vector<int> counts(6);
  for (int i = 0; i < 600; ++i) {
    const uint64_t draw = state.next_at_most(5);
    ASSERT_LE(draw, 5u);
    ++counts[draw];
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 100, 50);  // a deterministic sequence: the bound only says "roughly uniform"
  }
}

TEST(RandomState, DrawsNothingForNoChoice) {
  RandomState state(3);
  RandomState same(3);
  EXPECT_EQ(state.next_at_most(0), 0u);
  EXPECT_EQ(state.next_u32(), same.next_u32());
}

TEST(RandomState, LeavesEmptyAndSingleSpansAlone) {
  EXPECT_TRUE(permutation(0, 1).empty());
  EXPECT_THAT(permutation(1, 1), ElementsAre(0));
}

}  // namespace
}  // namespace braid
