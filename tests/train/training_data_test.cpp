#include "train/training_data.h"

#include <cmath>
#include <filesystem>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "data/test_dataset.h"
#include "data/test_text.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A folder with a text of many paragraphs, and a configuration that trains on it.
class TrainingDataTest : public testing::Test {
 protected:
  TrainingDataTest() {
    write_test_file(folder_ / "text.txt", sample_text(300));
    config_.data.train = folder_ / "text.txt";
    config_.data.split = "80,20,0";
    config_.train.sequence = 16;
    config_.train.global_batch = 4;
    config_.train.steps = 5;
    config_.eval.batches = 2;
  }

  TrainingData open() {
    tokenizer_ = load_tokenizer(config_.data.tokenizer);
    return TrainingData(
        config_, *tokenizer_,
        {.cache_folder = folder_ / "cache",
         .num_samples = config_.train.steps * config_.train.global_batch,
         .message = [this](const std::string& line) { messages_.push_back(line); }});
  }

  TempFolder folder_;
  RunConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> messages_;
};

TEST_F(TrainingDataTest, HasTheSamplesOfTheRun) {
  const TrainingData data = open();
  EXPECT_EQ(data.training().num_samples(), 5 * 4);
  EXPECT_EQ(data.training().sequence_tokens(), 16);
  ASSERT_NE(data.held_out(), nullptr);
  EXPECT_EQ(data.held_out()->num_samples(), 2 * 4);
  EXPECT_GT(data.held_out_entropy(), 1.0);
  EXPECT_LT(data.held_out_entropy(), std::log(static_cast<double>(tokenizer_->vocabulary_size())));
}

TEST_F(TrainingDataTest, WithoutEvaluationHoldsNothingOut) {
  config_.eval.interval = 0;
  const TrainingData data = open();
  EXPECT_EQ(data.held_out(), nullptr);
  EXPECT_EQ(data.held_out_entropy(), 0.0);
}

TEST_F(TrainingDataTest, TakesIdsOfAPairButNoTextWithoutATokenizer) {
  write_dataset(folder_ / "pair", {{5, 70000, 3, 9}, {1, 2, 3}}, TokenType::kI32);
  config_.data.train = folder_ / "pair";
  config_.data.tokenizer = "ids:70001";
  config_.data.split = "1,0,0";
  config_.train.sequence = 3;
  config_.eval.interval = 0;
  open();
  EXPECT_EQ(tokenizer_->vocabulary_size(), 70001);
  config_.data.train = folder_ / "text.txt";
  EXPECT_THAT(message_of<ConfigError>([&] { open(); }), HasSubstr("ids:70001"));
}

TEST_F(TrainingDataTest, TokenizesATextOnce) {
  open();
  EXPECT_THAT(messages_, ElementsAre(HasSubstr(config_.data.train)));
  open();
  EXPECT_EQ(messages_.size(), 1u);
}

TEST_F(TrainingDataTest, TokenizesAgainIfTheTextOrItsTreatmentChanges) {
  const int64_t tokens = open().training().tokens_per_epoch();
  config_.data.append_eod = false;
  EXPECT_LT(open().training().tokens_per_epoch(), tokens);
  EXPECT_EQ(messages_.size(), 2u);
  write_test_file(config_.data.train, sample_text(100, 2));
  EXPECT_LT(open().training().tokens_per_epoch(), tokens / 2);
  EXPECT_EQ(messages_.size(), 3u);
}

TEST_F(TrainingDataTest, ReadsTheSameSamplesFromTheCache) {
  const auto first_sample = [this] {
    const TrainingData data = open();
    std::vector<int32_t> tokens(16);
    std::vector<int32_t> labels(16);
    data.training().read(0, tokens, labels);
    return tokens;
  };
  const auto tokens = first_sample();
  EXPECT_EQ(first_sample(), tokens);
  config_.data.seed = 1;
  EXPECT_NE(first_sample(), tokens);
}

TEST_F(TrainingDataTest, TakesATokenFileAsItIs) {
  write_dataset(folder_ / "corpus", counting_sequences(std::vector<int32_t>(10, 25)));
  for (const char* name : {"corpus", "corpus.bin", "corpus.idx"}) {
    config_.data.train = folder_ / name;
    EXPECT_EQ(open().training().tokens_per_epoch(), 8 * 25) << name;
  }
  EXPECT_THAT(messages_, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache"));
}

TEST_F(TrainingDataTest, RefusesNoData) {
  config_.data.train = "";
  EXPECT_THAT(message_of<ConfigError>([&] { open(); }), HasSubstr("data.train: not given"));
}

TEST_F(TrainingDataTest, NamesAMissingFile) {
  config_.data.train = folder_ / "missing.txt";
  EXPECT_THAT(message_of<DataError>([&] { open(); }),
              HasSubstr("missing.txt\": there is no such text file"));
}

TEST_F(TrainingDataTest, NamesTheSplitOption) {
  config_.data.split = "80,twenty";
  EXPECT_THAT(message_of<ConfigError>([&] { open(); }), HasSubstr("data.split"));
}

TEST_F(TrainingDataTest, RefusesACacheFolderThatCannotBeMade) {
  write_test_file(folder_ / "cache", "in the way");
  EXPECT_THAT(message_of<DataError>([&] { open(); }), HasSubstr("cannot make the folder"));
}

}  // namespace
}  // namespace braid
