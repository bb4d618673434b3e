#include "data/gpt_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "data/test_dataset.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using R = SequenceRange;

class GptDatasetTest : public ::testing::Test {
 protected:
  GptDatasetTest() { write_dataset(folder_ / "a", counting_sequences({5, 3, 7, 4})); }

  GptDataset make(GptDatasetOptions options, SequenceRange range = {0, 4}) const {
    return GptDataset(dataset(), range, options);
  }
  const IndexedDataset& dataset() const {
    if (!dataset_) {
      dataset_ = std::make_unique<IndexedDataset>(folder_ / "a");
    }
    return *dataset_;
  }

  TempFolder folder_;
  mutable std::unique_ptr<IndexedDataset> dataset_;
};

struct Item {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
};

Item item(const GptDataset& data, int64_t i) {
  const auto count = static_cast<size_t>(data.sequence_tokens());
  Item result{std::vector<int32_t>(count), std::vector<int32_t>(count)};
  data.read(i, result.tokens, result.labels);
  return result;
}

// Sequences hold tokens 0-4, 5-7, 8-14, 15-18; the order is the golden of one epoch: documents 0 1
// 2 3, samples at (0,0) (0,4) (2,0) (2,4), taken as 1 2 3 0.
TEST_F(GptDatasetTest, ReadsTheSamplesOfTheGoldenOrder) {
  const GptDataset data = make({.sequence_tokens = 4, .num_samples = 4, .seed = 1234});
  EXPECT_EQ(data.num_samples(), 4);
  EXPECT_EQ(data.num_epochs(), 1);
  EXPECT_EQ(data.order(), "4 samples in 1 epochs, the last one shuffled with the others");
  EXPECT_EQ(data.tokens_per_epoch(), 19);
  EXPECT_THAT(item(data, 0).tokens, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(item(data, 0).labels, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(item(data, 1).tokens, ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(item(data, 1).labels, ElementsAre(9, 10, 11, 12));
  EXPECT_THAT(item(data, 2).tokens, ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(item(data, 2).labels, ElementsAre(13, 14, 15, 16));
  EXPECT_THAT(item(data, 3).tokens, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(item(data, 3).labels, ElementsAre(1, 2, 3, 4));
}

TEST_F(GptDatasetTest, RepeatsEpochsUntilThereAreEnoughSamples) {
  const GptDataset data = make({.sequence_tokens = 4, .num_samples = 6, .seed = 1234});
  EXPECT_EQ(data.num_samples(), 6);
  EXPECT_EQ(data.num_epochs(), 2);
  EXPECT_EQ(data.order(), "9 samples in 2 epochs, the last one shuffled apart");
  // Golden shuffle 0 2 3 1 | 4 8: sample 4 runs from the end of sequence 3 into sequence 1 of the
  // second epoch.
  EXPECT_THAT(item(data, 4).tokens, ElementsAre(16, 17, 18, 5));
  EXPECT_THAT(item(data, 4).labels, ElementsAre(17, 18, 5, 6));
  EXPECT_THAT(item(data, 5).tokens, ElementsAre(18, 0, 1, 2));
}

TEST_F(GptDatasetTest, GivesOneEpochWithoutANumberOfSamples) {
  EXPECT_EQ(make({.sequence_tokens = 4}).num_samples(), 4);
  EXPECT_EQ(make({.sequence_tokens = 1}).num_samples(), 18);
  EXPECT_EQ(make({.sequence_tokens = 18}).num_samples(), 1);
  EXPECT_THAT(item(make({.sequence_tokens = 18}), 0).labels.size(), 18u);
}

TEST_F(GptDatasetTest, StaysInsideItsRange) {
  const GptDataset data = make({.sequence_tokens = 2, .num_samples = 20}, {1, 3});
  EXPECT_EQ(data.tokens_per_epoch(), 10);
  for (int64_t i = 0; i < data.num_samples(); ++i) {
    const Item sample = item(data, i);
    for (const std::vector<int32_t>& row : {sample.tokens, sample.labels}) {
      for (const int32_t token : row) {
        EXPECT_TRUE(token >= 5 && token <= 14) << token;
      }
    }
  }
}

TEST_F(GptDatasetTest, RefusesEmptyPartsAndTooFewTokens) {
  EXPECT_THAT(message_of<ConfigError>([&] {
                make({.name = "validation", .sequence_tokens = 4}, {4, 4});
              }),
              AllOf(HasSubstr("validation"), HasSubstr(folder_ / "a"), HasSubstr("data.split"),
                    HasSubstr("blank lines"), HasSubstr("eval.interval = 0")));
  EXPECT_THAT(message_of<DataError>([&] { make({.sequence_tokens = 19}); }),
              AllOf(HasSubstr("19 tokens"), HasSubstr("train.sequence + 1 = 20"),
                    HasSubstr("or set train.sequence = 18")));
  EXPECT_THROW(make({.sequence_tokens = 0}), ConfigError);
  EXPECT_THROW(make({.sequence_tokens = INT64_MAX}), ConfigError);
  EXPECT_THROW(make({.sequence_tokens = 4, .num_samples = -1}), ConfigError);
  EXPECT_THROW(make({.sequence_tokens = 4, .num_samples = INT64_MAX}), ConfigError);
}

TEST_F(GptDatasetTest, RefusesTokensOutsideTheVocabulary) {
  const GptDataset data = make({.sequence_tokens = 4, .seed = 1234, .vocabulary_size = 16});
  EXPECT_THAT(item(data, 0).tokens, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(message_of<DataError>([&] { item(data, 2); }), HasSubstr("token 16"));
}

TEST_F(GptDatasetTest, RefusesWrongSizesAndNumbers) {
  const GptDataset data = make({.sequence_tokens = 4});
  std::vector<int32_t> four(4);
  std::vector<int32_t> three(3);
  EXPECT_THROW(data.read(4, four, four), InternalError);
  EXPECT_THROW(data.read(-1, four, four), InternalError);
  EXPECT_THROW(data.read(0, four, three), InternalError);
}

TEST(SplitSequences, NormalisesWeights) {
  EXPECT_EQ(split_sequences("969,30,1", 1000),
            (DatasetSplit{R{0, 969}, R{969, 999}, R{999, 1000}}));
  EXPECT_EQ(split_sequences("0.9, 0.1", 10), (DatasetSplit{R{0, 9}, R{9, 10}, R{10, 10}}));
  EXPECT_EQ(split_sequences("5", 7), (DatasetSplit{R{0, 7}, R{7, 7}, R{7, 7}}));
  EXPECT_EQ(split_sequences("0,1,1", 4), (DatasetSplit{R{0, 0}, R{0, 2}, R{2, 4}}));
  EXPECT_EQ(split_sequences("1,1,1", 0), (DatasetSplit{R{0, 0}, R{0, 0}, R{0, 0}}));
}

TEST(SplitSequences, RoundsHalvesToEvenAsPythonDoes) {
  EXPECT_EQ(split_sequences("1,1", 5)[0], (R{0, 2}));  // 2.5
  EXPECT_EQ(split_sequences("1,1", 7)[0], (R{0, 4}));  // 3.5
}

TEST(SplitSequences, RefusesWhatIsNoSplit) {
  for (const char* text : {"", ",", "a", "1,,1", "1,2,3,4", "-1,2", "0,0,0", "nan", "inf,1", "1;2",
                           "1e308,1e308,1e308", "1,2,"}) {
    EXPECT_THAT(message_of<ConfigError>([&] { split_sequences(text, 10, "data.split"); }),
                AllOf(HasSubstr("data.split"), HasSubstr(text)))
        << text;
  }
}

// The token names its place, and so does the mask, which is 0 at every third one.
TEST_F(GptDatasetTest, HasNoLabelsWhereTheMaskIsZero) {
  auto masks = counting_sequences({5, 3, 7, 4});
  for (std::vector<int32_t>& sequence : masks) {
    for (int32_t& token : sequence) {
      token = token % 3 == 0 ? 0 : 1;
    }
  }
  write_dataset(folder_ / "mask", masks);
  const IndexedDataset mask(folder_ / "mask");
  const GptDatasetOptions plain{.sequence_tokens = 4, .num_samples = 8, .seed = 3};
  GptDatasetOptions masked = plain;
  masked.mask = &mask;
  const GptDataset all = make(plain);
  const GptDataset some = make(masked);
  for (int64_t i = 0; i < 8; ++i) {
    Item expected = item(all, i);
    for (int32_t& label : expected.labels) {
      label = label % 3 == 0 ? -1 : label;
    }
    EXPECT_EQ(item(some, i).tokens, expected.tokens);
    EXPECT_EQ(item(some, i).labels, expected.labels);
  }
  write_dataset(folder_ / "mask", counting_sequences({5, 3, 6, 5}));
  const IndexedDataset other(folder_ / "mask");
  masked.mask = &other;
  EXPECT_THAT(message_of<DataError>([&] { make(masked); }), HasSubstr("has other sequences than"));
}

}  // namespace
}  // namespace braid
