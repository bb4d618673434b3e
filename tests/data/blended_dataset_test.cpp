#include "data/blended_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "base/errors.h"
#include "base/temp_folder.h"
#include "data/batch_loader.h"
#include "data/test_dataset.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// The values of blend_golden.py.
const std::vector<double> kWeights = {5, 3, 2};
constexpr int64_t kSamples = 20;
const std::vector<int16_t> kCorpus = {0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1, 2, 0, 1, 0, 2, 0, 1, 0};
const std::vector<int64_t> kSample = {0, 0, 0, 1, 1, 2, 1, 3, 2, 4, 5, 3, 2, 6, 4, 7, 3, 8, 5, 9};
const std::vector<int32_t> kFirstTokens = {6,  116, 208, 10, 108, 3, 204, 12, 112, 14,
                                           17, 104, 224, 8,  100, 6, 200, 2,  120, 7};

TEST(BlendOrder, MatchesTheGoldenOfMegatronsDefinition) {
  const std::vector<double> shares = normalized_weights(kWeights);
  EXPECT_THAT(samples_per_corpus(shares, kSamples), ElementsAre(11, 7, 5));
  const BlendOrder order = build_blend_order(shares, kSamples);
  EXPECT_EQ(order.corpus, kCorpus);
  EXPECT_EQ(order.sample, kSample);
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

/// The three corpora of blend_golden.py.
class BlendedDatasetTest : public ::testing::Test {
 protected:
  BlendedDatasetTest() {
    add("a", 0, {5, 3, 7, 4}, 11);
    add("b", 100, {6, 6, 9}, 7);
    add("c", 200, {30}, 5);
  }

  BlendedDataset blend() const {
    std::vector<const GptDataset*> corpora;
    for (const auto& corpus : corpora_) {
      corpora.push_back(corpus.get());
    }
    return BlendedDataset(corpora, normalized_weights(kWeights), kSamples);
  }

 private:
  void add(const std::string& name, int32_t base, const std::vector<int32_t>& lengths,
           int64_t num_samples) {
    std::vector<std::vector<int32_t>> sequences = counting_sequences(lengths);
    for (std::vector<int32_t>& sequence : sequences) {
      for (int32_t& token : sequence) {
        token += base;
      }
    }
    write_dataset(folder_ / name, sequences);
    datasets_.push_back(std::make_unique<IndexedDataset>(folder_ / name));
    const IndexedDataset& dataset = *datasets_.back();
    corpora_.push_back(std::make_unique<GptDataset>(
        dataset, dataset.all_sequences(),
        GptDatasetOptions{.sequence_tokens = 4, .num_samples = num_samples, .seed = 1234}));
  }

  TempFolder folder_;
  std::vector<std::unique_ptr<IndexedDataset>> datasets_;
  std::vector<std::unique_ptr<GptDataset>> corpora_;
};

TEST_F(BlendedDatasetTest, ReadsTheSamplesOfTheGolden) {
  const BlendedDataset data = blend();
  EXPECT_EQ(data.num_samples(), kSamples);
  EXPECT_EQ(data.sequence_tokens(), 4);
  EXPECT_THAT((std::vector{data.samples_of(0), data.samples_of(1), data.samples_of(2)}),
              ElementsAre(10, 6, 4));
  std::vector<int32_t> first_tokens;
  for (int64_t i = 0; i < kSamples; ++i) {
    std::vector<int32_t> tokens(4);
    std::vector<int32_t> labels(4);
    data.read(i, tokens, labels);
    first_tokens.push_back(tokens[0]);
    EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.end(), labels.begin()));
  }
  EXPECT_EQ(first_tokens, kFirstTokens);
}

/// First tokens of all samples from `begin` on, in global order, as `num_ranks` loaders of a rank
/// each read them.
std::vector<int32_t> first_tokens_of(const SampleSource& source, int64_t num_ranks, int64_t begin) {
  const BatchShape shape{.num_ranks = num_ranks, .num_microbatches = 4 / num_ranks};
  std::vector<int32_t> tokens(static_cast<size_t>(kSamples - begin));
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    BatchLoader loader(
        source,
        {.shape = shape, .consumed_samples = begin, .rank_begin = rank, .rank_end = rank + 1});
    while (const std::optional<StepBatch> batch = loader.next()) {
      for (int64_t m = 0; m < shape.num_microbatches; ++m) {
        const int64_t sample = first_sample_of(shape, batch->consumed_samples(), rank, m);
        tokens[static_cast<size_t>(sample - begin)] = batch->tokens(rank, m).front();
      }
    }
  }
  return tokens;
}

TEST_F(BlendedDatasetTest, GivesTheSameSamplesAfterARestartAndToAnyNumberOfRanks) {
  const BlendedDataset data = blend();
  const BlendedDataset again = blend();
  for (const int64_t num_ranks : {1, 2, 4}) {
    EXPECT_EQ(first_tokens_of(data, num_ranks, 0), kFirstTokens) << num_ranks;
    EXPECT_THAT(first_tokens_of(again, num_ranks, 8),
                ElementsAreArray(kFirstTokens.begin() + 8, kFirstTokens.end()))
        << num_ranks;
  }
}

TEST_F(BlendedDatasetTest, RefusesWrongNumbers) {
  std::vector<int32_t> four(4);
  EXPECT_THROW(blend().read(kSamples, four, four), InternalError);
  EXPECT_THROW(blend().read(-1, four, four), InternalError);
}

}  // namespace
}  // namespace braid
