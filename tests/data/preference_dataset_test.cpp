#include "data/preference_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "data/batch_loader.h"
#include "data/test_dataset.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Sequences = std::vector<std::vector<int32_t>>;

constexpr int32_t kPad = 99;

class PreferenceDatasetTest : public ::testing::Test {
 protected:
  /// Documents, and how many tokens of each are the prompt.
  PreferencePairs pairs(const Sequences& documents, const std::vector<size_t>& prompts,
                        int64_t sequence_tokens) {
    Sequences masks;
    for (size_t i = 0; i < documents.size(); ++i) {
      masks.emplace_back(documents[i].size(), 1);
      std::fill_n(masks.back().begin(), prompts[i], 0);
    }
    return with_masks(documents, masks, sequence_tokens);
  }

  PreferencePairs with_masks(const Sequences& documents, const Sequences& masks,
                             int64_t sequence_tokens) {
    const std::string prefix = folder_ / fmt::format("pairs{}", count_++);
    write_dataset(prefix, documents);
    write_dataset(prefix + ".mask", masks);
    files_.push_back(std::make_unique<IndexedDataset>(prefix));
    files_.push_back(std::make_unique<IndexedDataset>(prefix + ".mask"));
    return {*files_[files_.size() - 2], *files_.back(), sequence_tokens, 100, kPad};
  }

  TempFolder folder_;
  int count_ = 0;
  std::vector<std::unique_ptr<IndexedDataset>> files_;
};

struct Item {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
};

Item item(const SampleSource& data, int64_t i) {
  const auto count = static_cast<size_t>(data.sequence_tokens());
  Item result{std::vector<int32_t>(count, 77), std::vector<int32_t>(count, 77)};
  data.read(i, result.tokens, result.labels);
  return result;
}

TEST_F(PreferenceDatasetTest, LabelsAreTheTokensOfAnswers) {
  const PreferencePairs data = pairs({{1, 2, 3, 4, 5}, {1, 2, 6}}, {2, 2}, 6);
  EXPECT_EQ(data.num_pairs(), 1);
  EXPECT_THAT(item(data, 0).tokens, ElementsAre(1, 2, 3, 4, 5, kPad));
  EXPECT_THAT(item(data, 0).labels, ElementsAre(-1, 3, 4, 5, -1, -1));
  EXPECT_THAT(item(data, 1).tokens, ElementsAre(1, 2, 6, kPad, kPad, kPad));
  EXPECT_THAT(item(data, 1).labels, ElementsAre(-1, 6, -1, -1, -1, -1));
}

// Tokens behind an answer that do not count, as the newline of ChatML.
TEST_F(PreferenceDatasetTest, LabelsFollowTheMask) {
  const PreferencePairs data =
      with_masks({{1, 2, 3, 4}, {1, 5, 6, 7}}, {{0, 1, 1, 0}, {0, 1, 0, 1}}, 4);
  EXPECT_THAT(item(data, 0).labels, ElementsAre(2, 3, -1, -1));
  EXPECT_THAT(item(data, 1).labels, ElementsAre(5, -1, 7, -1));
}

// A document of T + 1 tokens fits: the last one is only a label.
TEST_F(PreferenceDatasetTest, ALongPairLosesTheStartOfItsPrompt) {
  const Sequences documents{{1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 8}};
  const PreferencePairs whole = pairs(documents, {3, 3}, 6);
  EXPECT_THAT(item(whole, 0).tokens, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(item(whole, 0).labels, ElementsAre(-1, -1, 4, 5, 6, 7));
  const PreferencePairs cut = pairs(documents, {3, 3}, 5);
  EXPECT_THAT(item(cut, 0).tokens, ElementsAre(2, 3, 4, 5, 6));
  EXPECT_THAT(item(cut, 0).labels, ElementsAre(-1, 4, 5, 6, 7));
  EXPECT_THAT(item(cut, 1).tokens, ElementsAre(2, 3, 8, kPad, kPad));
  EXPECT_THAT(item(cut, 1).labels, ElementsAre(-1, 8, -1, -1, -1));
  EXPECT_THAT(cut.describe(), HasSubstr("1 pairs: 100.00% of the prompts cut at their start, 0% of "
                                        "the answers at their end, 20.00% of the positions empty"));
}

TEST_F(PreferenceDatasetTest, ALongAnswerLosesItsEnd) {
  const PreferencePairs data = pairs({{1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 8}}, {3, 3}, 3);
  EXPECT_THAT(item(data, 0).tokens, ElementsAre(3, 4, 5));
  EXPECT_THAT(item(data, 0).labels, ElementsAre(4, 5, 6));
  EXPECT_THAT(item(data, 1).labels, ElementsAre(8, -1, -1));
  EXPECT_THAT(data.describe(), HasSubstr("50.00% of the answers at their end"));
}

TEST_F(PreferenceDatasetTest, WhatIsNoPairIsRefusedByNumber) {
  const auto refusal = [&](const Sequences& documents, const std::vector<size_t>& prompts) {
    return message_of<DataError>([&] { pairs(documents, prompts, 5); });
  };
  EXPECT_THAT(refusal({{1, 2}, {1, 3}, {1, 4}}, {1, 1, 1}),
              HasSubstr("3 documents, which are not"));
  EXPECT_THAT(refusal({{1, 2}, {1, 3}, {1, 2, 4}, {1, 3, 4}}, {1, 1, 2, 2}),
              HasSubstr("documents 2 and 3 of"));
  EXPECT_THAT(refusal({{1, 2}, {1, 2, 3}}, {1, 2}), HasSubstr("have different prompts"));
  EXPECT_THAT(refusal({{1, 2}, {1, 3}}, {1, 2}), HasSubstr("document 1 of"));
  EXPECT_THAT(refusal({{1, 2}, {1, 3}}, {1, 2}), HasSubstr("has no answer; make it with `braid "));
}

/// Answers that name their pair and side.
Sequences numbered_pairs(int32_t count) {
  Sequences documents;
  for (int32_t pair = 0; pair < count; ++pair) {
    documents.push_back({pair, 2 * pair});
    documents.push_back({pair, 2 * pair + 1});
  }
  return documents;
}

TEST_F(PreferenceDatasetTest, EveryEpochHasEachPairOnceAndTogether) {
  const PreferencePairs file = pairs(numbered_pairs(10), std::vector<size_t>(20, 1), 3);
  const PreferenceDataset data(file, {2, 9}, {.num_samples = 2 * 21, .seed = 3});
  EXPECT_EQ(data.num_samples(), 42);
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> order;
    for (int64_t i = 0; i < 7; ++i) {
      const int64_t sample = 2 * (7 * epoch + i);
      const Item chosen = item(data, sample);
      const Item rejected = item(data, sample + 1);
      EXPECT_EQ(chosen.tokens[0], rejected.tokens[0]);
      EXPECT_EQ(chosen.labels[0], 2 * chosen.tokens[0]);
      EXPECT_EQ(rejected.labels[0], 2 * chosen.tokens[0] + 1);
      EXPECT_EQ(data.document(sample + 1), 2 * chosen.tokens[0] + 1);
      order.push_back(chosen.tokens[0]);
    }
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()),
              (std::set<int32_t>{2, 3, 4, 5, 6, 7, 8}));
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 1u);
}

// What a resumed run with more steps relies on.
TEST_F(PreferenceDatasetTest, MoreSamplesBeginWithTheSameOnes) {
  const PreferencePairs file = pairs(numbered_pairs(6), std::vector<size_t>(12, 1), 3);
  const PreferenceDataset few(file, {0, 6}, {.num_samples = 16, .seed = 3});
  const PreferenceDataset many(file, {0, 6}, {.num_samples = 60, .seed = 3});
  const PreferenceDataset other(file, {0, 6}, {.num_samples = 60, .seed = 4});
  EXPECT_EQ(few.order(), many.order());
  int64_t moved = 0;
  for (int64_t i = 0; i < few.num_samples(); ++i) {
    EXPECT_EQ(few.document(i), many.document(i));
    moved += few.document(i) == other.document(i) ? 0 : 1;
  }
  EXPECT_GT(moved, 0);
}

TEST_F(PreferenceDatasetTest, BatchesHaveTheReferenceOfEachSample) {
  const PreferencePairs file = pairs(numbered_pairs(6), std::vector<size_t>(12, 1), 3);
  PreferenceDataset data(file, {0, 6}, {.num_samples = 12, .seed = 3});
  EXPECT_THROW(data.reference(0), InternalError);
  auto reference = std::make_shared<std::vector<float>>();
  for (int document = 0; document < 12; ++document) {
    reference->push_back(-1.5f * static_cast<float>(document));
  }
  data.set_reference(reference);
  BatchLoader loader(data, {.shape = {.num_ranks = 3, .num_microbatches = 1, .microbatch = 2}});
  for (int step = 0; step < 2; ++step) {
    const StepBatch batch = loader.next().value();
    for (int rank = 0; rank < 3; ++rank) {
      for (size_t row = 0; row < 2; ++row) {
        const int32_t label = batch.labels(rank, 0)[3 * row];
        EXPECT_EQ(batch.references(rank, 0)[row], -1.5f * static_cast<float>(label));
        EXPECT_EQ(label % 2, static_cast<int32_t>(row));
      }
    }
  }
}

TEST_F(PreferenceDatasetTest, AnEmptyPartIsRefused) {
  const PreferencePairs file = pairs(numbered_pairs(2), std::vector<size_t>(4, 1), 3);
  EXPECT_THAT(message_of<DataError>([&] {
                PreferenceDataset(file, {2, 2}, {.name = "validation"});
              }),
              HasSubstr("the validation part of the pairs is empty: there are 2"));
  EXPECT_THROW(PreferenceDataset(file, {0, 2}, {.num_samples = 3}), ConfigError);
}

}  // namespace
}  // namespace braid
