#include "data/packed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "data/test_dataset.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kPad = 99;

/// Documents 0-2, 3-14, 15-18, 19-21, 22-23.
class PackedDatasetTest : public ::testing::Test {
 protected:
  PackedDatasetTest() {
    write_dataset(folder_ / "a", counting_sequences({3, 12, 4, 3, 2}));
    dataset_ = std::make_unique<IndexedDataset>(folder_ / "a");
  }

  PackedDataset make(GptDatasetOptions options, SequenceRange range = {0, 5}) const {
    return {*dataset_, range, options, kPad};
  }

  TempFolder folder_;
  std::unique_ptr<IndexedDataset> dataset_;
};

struct Item {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
};

Item item(const SampleSource& data, int64_t i) {
  const auto count = static_cast<size_t>(data.sequence_tokens());
  Item result{std::vector<int32_t>(count), std::vector<int32_t>(count)};
  data.read(i, result.tokens, result.labels);
  return result;
}

/// The sample that begins with this token, of an epoch.
Item beginning_with(const SampleSource& data, int32_t token) {
  for (int64_t i = 0; i < data.num_samples(); ++i) {
    const Item found = item(data, i);
    if (found.tokens.front() == token) {
      return found;
    }
  }
  ADD_FAILURE() << "no sample begins with " << token;
  return {};
}

TEST_F(PackedDatasetTest, LabelsAreTheNextTokensOfTheSameDocument) {
  const PackedDataset data = make({.sequence_tokens = 5});
  EXPECT_EQ(data.num_samples(), 5);
  EXPECT_EQ(data.tokens_per_epoch(), 24);
  // A cut document goes on in another sample: the label is there.
  EXPECT_THAT(beginning_with(data, 3).labels, ElementsAre(4, 5, 6, 7, 8));
  EXPECT_THAT(beginning_with(data, 15).tokens, ElementsAre(15, 16, 17, 18, kPad));
  EXPECT_THAT(beginning_with(data, 15).labels, ElementsAre(16, 17, 18, -1, -1));
}

TEST_F(PackedDatasetTest, EveryEpochHasEachSampleOnceInAnotherOrder) {
  const PackedDataset data = make({.sequence_tokens = 5, .num_samples = 23, .seed = 7});
  EXPECT_EQ(data.num_samples(), 23);
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::set<int32_t> seen;
    std::vector<int32_t> order;
    for (int64_t i = 0; i < 5; ++i) {
      order.push_back(item(data, epoch * 5 + i).tokens.front());
      for (const int32_t token : item(data, epoch * 5 + i).tokens) {
        seen.insert(token);
      }
    }
    EXPECT_EQ(seen.size(), 25u) << "24 tokens and the padding";
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 1u);
  const PackedDataset again = make({.sequence_tokens = 5, .num_samples = 23, .seed = 7});
  for (int64_t i = 0; i < 23; ++i) {
    EXPECT_EQ(item(again, i).tokens, item(data, i).tokens);
  }
}

TEST_F(PackedDatasetTest, TokensThatTheMaskLeavesOutAreNoLabels) {
  write_dataset(folder_ / "mask",
                {{0, 1, 1}, std::vector<int32_t>(12, 1), {0, 0, 1, 1}, {1, 0, 1}, {1, 1}});
  const IndexedDataset mask(folder_ / "mask");
  const PackedDataset data = make({.sequence_tokens = 5, .mask = &mask});
  EXPECT_THAT(beginning_with(data, 15).labels, ElementsAre(-1, 17, 18, -1, -1));
  EXPECT_THAT(beginning_with(data, 8).labels, ElementsAre(9, 10, 11, 12, 13));
}

TEST_F(PackedDatasetTest, SaysWhatIsCutAndWhatIsEmpty) {
  EXPECT_EQ(make({.sequence_tokens = 5}).describe(),
            "5 documents in 5 sequences: 20.00% of them cut, 4.00% of the positions empty");
  EXPECT_EQ(make({.sequence_tokens = 5, .num_samples = 7}).order(),
            "7 samples of 5 packed by best fit");
}

TEST_F(PackedDatasetTest, RefusesWhatHasNoLabels) {
  write_dataset(folder_ / "short", counting_sequences({1, 1}));
  const IndexedDataset ones(folder_ / "short");
  EXPECT_THAT(message_of<DataError>([&] {
                PackedDataset(ones, {0, 2}, {.sequence_tokens = 5}, kPad);
              }),
              HasSubstr("has no document of two tokens"));
  EXPECT_THROW(make({.sequence_tokens = 0}), ConfigError);
  EXPECT_THROW(make({.sequence_tokens = 5}, {2, 2}), ConfigError);
}

}  // namespace
}  // namespace braid
