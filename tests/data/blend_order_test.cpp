#include "data/blend_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/blend_golden.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

TEST(BlendOrder, MatchesTheGoldenOfMegatronsDefinition) {
  const std::vector<double> shares = normalized_weights(kGoldenWeights);
  EXPECT_THAT(samples_per_corpus(shares, kGoldenSamples), ElementsAreArray(kGoldenRequests));
  const BlendOrder order = build_blend_order(shares, kGoldenSamples);
  EXPECT_EQ(order.corpus, kGoldenCorpus);
  EXPECT_EQ(order.sample, kGoldenSample);
}

// One by one, ten times 0.1 add up to 0.9999999999999999; NumPy's sum is 1.
TEST(BlendOrder, NormalisesWithTheSumOfNumPy) {
  EXPECT_THAT(normalized_weights(std::vector<double>(10, 0.1)), Each(0.1));
  // 130 numbers are halves of 64 and 66.
  const std::vector<double> many = normalized_weights(std::vector<double>(130, 2.0));
  EXPECT_THAT(many, Each(1.0 / 130.0));
}

TEST(BlendOrder, TakesNoMoreThanWasAskedOfACorpusAndKeepsToTheShares) {
  const std::vector<double> shares = normalized_weights(std::vector<double>{0.61, 0.3, 0.07, 0.02});
  const std::vector<int64_t> asked = samples_per_corpus(shares, 1000);
  const BlendOrder order = build_blend_order(shares, 1000);
  std::vector<int64_t> taken(shares.size(), 0);
  for (size_t i = 0; i < order.corpus.size(); ++i) {
    const auto corpus = static_cast<size_t>(order.corpus[i]);
    ASSERT_EQ(order.sample[i], taken[corpus]++);
    for (size_t c = 0; c < shares.size(); ++c) {
      ASSERT_NEAR(static_cast<double>(taken[c]), shares[c] * static_cast<double>(i + 1), 1.5);
    }
  }
  for (size_t c = 0; c < shares.size(); ++c) {
    EXPECT_LE(taken[c], asked[c]);
  }
}

}  // namespace
}  // namespace braid
