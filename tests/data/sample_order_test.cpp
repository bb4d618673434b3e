#include "data/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/errors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using P = SamplePosition;

const std::vector<int32_t> kLengths = {5, 3, 7, 4};

SampleOrder order_of(int64_t num_samples, uint64_t seed = 1234) {
  return build_sample_order(kLengths,
                            {.sequence_tokens = 4, .num_samples = num_samples, .seed = seed});
}

// Both goldens are computed by hand from Megatron-LM's definitions.
TEST(SampleOrder, MatchesTheGoldenWithASeparateFinalEpoch) {
  const SampleOrder order = order_of(6);
  EXPECT_EQ(order.num_epochs, 2);
  EXPECT_TRUE(order.separate_final_epoch);
  EXPECT_THAT(order.document_index, ElementsAre(0, 1, 2, 3, 1, 2, 3, 0));
  EXPECT_THAT(order.sample_index, ElementsAre(P{0, 0}, P{0, 4}, P{2, 0}, P{2, 4}, P{3, 1}, P{4, 1},
                                              P{5, 2}, P{5, 6}, P{6, 3}, P{7, 3}));
  EXPECT_THAT(order.shuffle_index, ElementsAre(0, 2, 3, 1, 4, 8, 7, 6, 5));
}

TEST(SampleOrder, MatchesTheGoldenOfOneEpoch) {
  const SampleOrder order = order_of(4);
  EXPECT_EQ(order.num_epochs, 1);
  EXPECT_FALSE(order.separate_final_epoch);
  EXPECT_THAT(order.document_index, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order.sample_index, ElementsAre(P{0, 0}, P{0, 4}, P{2, 0}, P{2, 4}, P{3, 1}));
  EXPECT_THAT(order.shuffle_index, ElementsAre(1, 2, 3, 0));
}

TEST(SampleOrder, AsksForOneEpochWithoutANumber) {
  EXPECT_EQ(order_of(0).num_epochs, 1);
  EXPECT_EQ(order_of(0).shuffle_index, order_of(4).shuffle_index);
}

TEST(SampleOrder, ShufflesAllEpochsTogetherIfMostOfTheLastIsNeeded) {
  // One epoch has 4 samples (19 tokens), the first of two gives 4; 7 needs 3 of the last, 80% of 4
  // rounds down to 3.
  const SampleOrder order = order_of(7);
  EXPECT_EQ(order.num_epochs, 2);
  EXPECT_FALSE(order.separate_final_epoch);
  EXPECT_EQ(order.shuffle_index.size(), 9u);
}

TEST(SampleOrder, TakesEachSequenceOncePerEpochAndEachSampleOnce) {
  for (const int64_t num_samples : {1, 5, 6, 7, 9, 20, 100}) {
    const SampleOrder order = order_of(num_samples, 99);
    ASSERT_GE(static_cast<int64_t>(order.shuffle_index.size()), num_samples);
    for (int32_t sequence = 0; sequence < 4; ++sequence) {
      EXPECT_EQ(std::count(order.document_index.begin(), order.document_index.end(), sequence),
                order.num_epochs);
    }
    std::vector<uint32_t> sorted = order.shuffle_index;
    std::sort(sorted.begin(), sorted.end());
    std::vector<uint32_t> expected(sorted.size());
    std::iota(expected.begin(), expected.end(), 0u);
    EXPECT_EQ(sorted, expected);
  }
}

TEST(SampleOrder, StepsOverEmptySequences) {
  const std::vector<int32_t> lengths = {0, 2, 0, 0, 3, 0};
  const SampleOrder order =
      build_sample_order(lengths, {.sequence_tokens = 2, .num_samples = 2, .seed = 1});
  EXPECT_EQ(order.num_epochs, 1);
  ASSERT_EQ(order.sample_index.size(), 3u);
  int64_t tokens_before_end = 0;
  for (int64_t i = 0; i < order.sample_index[2].position; ++i) {
    tokens_before_end += lengths[static_cast<size_t>(order.document_index[static_cast<size_t>(i)])];
  }
  EXPECT_EQ(tokens_before_end + order.sample_index[2].offset_tokens, 4);
}

TEST(SampleOrder, DependsOnTheSeedOnly) {
  const std::vector<int32_t> lengths(100, 9);
  const auto with_seed = [&](uint64_t seed) {
    return build_sample_order(lengths, {.sequence_tokens = 8, .num_samples = 150, .seed = seed});
  };
  EXPECT_EQ(with_seed(1).shuffle_index, with_seed(1).shuffle_index);
  EXPECT_NE(with_seed(1).shuffle_index, with_seed(2).shuffle_index);
  EXPECT_NE(with_seed(1).document_index, with_seed(2).document_index);
}

TEST(SampleOrder, RefusesTooFewTokens) {
  EXPECT_THROW(build_sample_order(kLengths, {.sequence_tokens = 19}), InternalError);
  EXPECT_THROW(build_sample_order(kLengths, {.sequence_tokens = 0}), InternalError);
  EXPECT_THROW(build_sample_order({}, {.sequence_tokens = 1}), InternalError);
  EXPECT_EQ(build_sample_order(kLengths, {.sequence_tokens = 18}).shuffle_index.size(), 1u);
}

}  // namespace
}  // namespace braid
