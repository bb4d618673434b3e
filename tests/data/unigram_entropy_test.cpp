#include "data/unigram_entropy.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "base/temp_folder.h"
#include "data/test_dataset.h"

namespace braid {
namespace {

constexpr double kTolerance = 1e-14;  // a handful of roundings of numbers near 1

double entropy_of(const std::vector<int32_t>& tokens) {
  return unigram_entropy(tokens);
}

TEST(UnigramEntropy, MatchesTheFormula) {
  EXPECT_NEAR(entropy_of({0, 1, 2, 3}), std::log(4.0), kTolerance);
  EXPECT_NEAR(entropy_of({7, 7, 7, 2}), 0.75 * std::log(4.0 / 3.0) + 0.25 * std::log(4.0),
              kTolerance);
  EXPECT_EQ(entropy_of({5, 5, 5}), 0.0);
  EXPECT_EQ(entropy_of({}), 0.0);
}

TEST(UnigramEntropy, CountsHugeIdsToo) {
  EXPECT_NEAR(entropy_of({2'000'000'000, 1, 1'999'999'999, 1 << 20}), std::log(4.0), kTolerance);
}

TEST(UnigramEntropy, RefusesNegativeTokens) {
  EXPECT_THROW(entropy_of({-1}), InternalError);
}

TEST(UnigramEntropy, CountsARangeOfSequences) {
  const TempFolder folder;
  write_dataset(folder / "a", {{9, 9}, {1, 2}, {}, {2, 1}, {3}});
  const IndexedDataset dataset(folder / "a");
  const auto entropy_of_range = [&](SequenceRange range) {
    return unigram_entropy(std::array{MixturePart{.dataset = dataset, .range = range}});
  };
  EXPECT_NEAR(entropy_of_range({1, 4}), std::log(2.0), kTolerance);
  EXPECT_EQ(entropy_of_range({2, 3}), 0.0);
  EXPECT_NEAR(entropy_of_range(dataset.all_sequences()), entropy_of({9, 9, 1, 2, 2, 1, 3}),
              kTolerance);
}

// A quarter of the mixture is {9}, three quarters are half 1 and half 2, however many tokens each
// part has.
TEST(UnigramEntropy, WeighsThePartsOfAMixtureByTheirShares) {
  const TempFolder folder;
  write_dataset(folder / "a", {{9, 9}, {1, 2}, {2, 1}, {1, 2}});
  const IndexedDataset dataset(folder / "a");
  EXPECT_NEAR(unigram_entropy(std::array{MixturePart{dataset, {0, 1}, 0.25},
                                         MixturePart{dataset, {1, 4}, 0.75}}),
              entropy_of({9, 9, 1, 1, 1, 2, 2, 2}), kTolerance);
}

}  // namespace
}  // namespace braid
