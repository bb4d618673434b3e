#include "data/blended_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/errors.h"
#include "base/temp_folder.h"
#include "data/batch_loader.h"
#include "data/blend_golden.h"
#include "data/test_dataset.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

/// The three corpora of blend_golden.py.
class BlendedDatasetTest : public ::testing::Test {
 protected:
  BlendedDatasetTest() {
    add("a", 0, {5, 3, 7, 4}, 11);
    add("b", 100, {6, 6, 9}, 7);
    add("c", 200, {30}, 5);
  }

  BlendedDataset blend() const {
    std::vector<const SampleSource*> corpora;
    for (const auto& corpus : corpora_) {
      corpora.push_back(corpus.get());
    }
    return BlendedDataset(corpora, normalized_weights(kGoldenWeights), kGoldenSamples);
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
  EXPECT_EQ(data.num_samples(), kGoldenSamples);
  EXPECT_EQ(data.sequence_tokens(), 4);
  EXPECT_THAT((std::vector{data.samples_of(0), data.samples_of(1), data.samples_of(2)}),
              ElementsAre(10, 6, 4));
  std::vector<int32_t> first_tokens;
  for (int64_t i = 0; i < kGoldenSamples; ++i) {
    std::vector<int32_t> tokens(4);
    std::vector<int32_t> labels(4);
    data.read(i, tokens, labels);
    first_tokens.push_back(tokens[0]);
    EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.end(), labels.begin()));
  }
  EXPECT_EQ(first_tokens, kGoldenFirstTokens);
}

/// First tokens of all samples from `begin` on, in global order, as `num_ranks` loaders of a rank
/// each read them.
std::vector<int32_t> first_tokens_of(const SampleSource& source, int64_t num_ranks, int64_t begin) {
  const BatchShape shape{.num_ranks = num_ranks, .num_microbatches = 4 / num_ranks};
  std::vector<int32_t> tokens(static_cast<size_t>(kGoldenSamples - begin));
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
    EXPECT_EQ(first_tokens_of(data, num_ranks, 0), kGoldenFirstTokens) << num_ranks;
    EXPECT_THAT(first_tokens_of(again, num_ranks, 8),
                ElementsAreArray(kGoldenFirstTokens.begin() + 8, kGoldenFirstTokens.end()))
        << num_ranks;
  }
}

TEST_F(BlendedDatasetTest, RefusesWrongNumbers) {
  std::vector<int32_t> four(4);
  EXPECT_THROW(blend().read(kGoldenSamples, four, four), InternalError);
  EXPECT_THROW(blend().read(-1, four, four), InternalError);
}

}  // namespace
}  // namespace braid
