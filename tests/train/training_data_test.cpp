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

using ::testing::AllOf;
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

  int64_t tokens_per_epoch() { return open().corpora().front().training->tokens_per_epoch(); }

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
  const int64_t tokens = tokens_per_epoch();
  config_.data.append_eod = false;
  EXPECT_LT(tokens_per_epoch(), tokens);
  EXPECT_EQ(messages_.size(), 2u);
  write_test_file(config_.data.train, sample_text(100, 2));
  EXPECT_LT(tokens_per_epoch(), tokens / 2);
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
    EXPECT_EQ(tokens_per_epoch(), 8 * 25) << name;
  }
  EXPECT_THAT(messages_, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache"));
}

/// As above with a blend of two corpora instead: 30 documents of 25 tokens, and 10.
class TrainingBlendTest : public TrainingDataTest {
 protected:
  TrainingBlendTest() {
    write_dataset(folder_ / "long", std::vector(30, std::vector<int32_t>(25, 65)));
    write_dataset(folder_ / "short", std::vector(10, std::vector<int32_t>(25, 66)));
    config_.data.train = "";
    config_.data.blend = {"3 " + (folder_ / "long"), "1 " + (folder_ / "short.bin")};
  }

  std::string refusal() {
    return message_of<Error>([&] { open(); });
  }
};

TEST_F(TrainingBlendTest, SharesTrainingAndHeldOutSamples) {
  const TrainingData data = open();
  EXPECT_EQ(data.training().num_samples(), 20);
  EXPECT_EQ(data.held_out()->num_samples(), 8);
  const auto count_of_long = [](const SampleSource& source) {
    int64_t count = 0;
    std::vector<int32_t> tokens(16);
    for (int64_t i = 0; i < source.num_samples(); ++i) {
      source.read(i, tokens, tokens);
      count += tokens.front() == 65 ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(count_of_long(data.training()), 15);
  EXPECT_EQ(count_of_long(*data.held_out()), 6);
  // Half of the mixture's tokens would be of one kind each if files counted, not weights.
  EXPECT_NEAR(data.held_out_entropy(), -0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-12);
  // 24 of 30 documents are for training: 600 tokens, of which 15 samples of 16 read 0.4.
  EXPECT_THAT(messages_, ElementsAre("data     0.7500 from " + (folder_ / "long") +
                                         ": 15 samples, 0.40 epochs of 600 tokens",
                                     "data     0.2500 from " + (folder_ / "short.bin") +
                                         ": 5 samples, 0.40 epochs of 200 tokens"));
}

/// data.valid, as Megatron-LM's blend of each split: no data are split, and the samples are those
/// that a run on these corpora alone would train on.
TEST_F(TrainingBlendTest, HasABlendOfItsOwnForValidation) {
  std::vector<std::vector<int32_t>> counting(12, std::vector<int32_t>(25));
  for (size_t i = 0; i < counting.size() * 25; ++i) {
    counting[i / 25][i % 25] = static_cast<int32_t>(i % 64);
  }
  write_dataset(folder_ / "counting", counting);
  write_dataset(folder_ / "other", std::vector(9, std::vector<int32_t>(25, 67)));
  const std::vector<std::string> valid = {"1 " + (folder_ / "counting"),
                                          "3 " + (folder_ / "other")};
  const auto samples_of = [](const SampleSource& source) {
    std::vector<std::vector<int32_t>> samples;
    for (int64_t i = 0; i < source.num_samples(); ++i) {
      std::vector<int32_t> labels(16);
      source.read(i, samples.emplace_back(16), labels);
    }
    return samples;
  };
  config_.data.split = DataConfig().split;
  config_.data.valid = valid;
  const TrainingData data = open();
  EXPECT_EQ(data.corpora()[0].training->tokens_per_epoch(), 30 * 25);
  EXPECT_EQ(data.corpora()[1].training->tokens_per_epoch(), 10 * 25);
  EXPECT_EQ(data.corpora()[0].held_out, nullptr);
  EXPECT_EQ(data.validation()[0].held_out->tokens_per_epoch(), 12 * 25);
  EXPECT_THAT(messages_, ElementsAre(HasSubstr("0.7500 from "), HasSubstr("0.2500 from "),
                                     "data     validation 0.2500 from " + (folder_ / "counting") +
                                         ": 2 samples, 0.11 epochs of 300 tokens",
                                     HasSubstr("data     validation 0.7500 from ")));
  const auto held_out = samples_of(*data.held_out());
  const std::string identity = data.identity();
  EXPECT_EQ(held_out.size(), 8u);

  // The same corpora, weights and number of samples, as those of training.
  RunConfig other = config_;
  std::swap(other, config_);
  config_.data.blend = valid;
  config_.data.valid = {"1 " + (folder_ / "short")};
  config_.train.steps = 2;  // 8 samples
  const TrainingData trained = open();
  EXPECT_EQ(samples_of(trained.training()), held_out);
  EXPECT_EQ(trained.identity(), data.validation_identity());

  // Another blend for validation leaves the training samples as they are.
  std::swap(other, config_);
  config_.data.valid = {"1 " + (folder_ / "other")};
  const TrainingData changed = open();
  EXPECT_EQ(changed.identity(), identity);
  EXPECT_NE(changed.validation_identity(), data.validation_identity());
  EXPECT_EQ(samples_of(changed.training()), samples_of(data.training()));
  EXPECT_NEAR(changed.held_out_entropy(), 0, 1e-12);
  config_.eval.interval = 0;
  EXPECT_EQ(open().held_out(), nullptr);
}

TEST_F(TrainingDataTest, TakesValidationDataBesideOneCorpus) {
  write_test_file(folder_ / "valid.txt", sample_text(100, 5));
  config_.data.split = DataConfig().split;
  const int64_t part = tokens_per_epoch();
  config_.data.valid = {"1 " + (folder_ / "valid.txt")};
  const TrainingData data = open();
  EXPECT_GT(data.corpora().front().training->tokens_per_epoch(), part);
  EXPECT_EQ(data.held_out()->num_samples(), 8);
  EXPECT_THAT(data.validation_identity(), HasSubstr("1 of "));
}

TEST_F(TrainingBlendTest, NamesTheValidationCorpusThatCannotBeUsed) {
  config_.data.split = DataConfig().split;
  write_dataset(folder_ / "wide", std::vector(10, std::vector<int32_t>(25, 66)), TokenType::kI32);
  config_.data.valid = {"1 " + (folder_ / "missing")};
  EXPECT_THAT(refusal(),
              HasSubstr("data.valid: \"" + (folder_ / "missing") + "\": there is no such"));
  config_.data.valid = {"1 " + (folder_ / "wide")};
  EXPECT_THAT(refusal(), HasSubstr("data.valid: '" + (folder_ / "long") + "' has u16 tokens and"));
}

TEST_F(TrainingBlendTest, IsIdentifiedByItsContentAndWeights) {
  const std::string identity = open().identity();
  std::filesystem::copy(folder_ / "short.bin", folder_ / "moved.bin");
  std::filesystem::copy(folder_ / "short.idx", folder_ / "moved.idx");
  config_.data.blend = {"0.75 " + (folder_ / "long"), "0.25 " + (folder_ / "moved")};
  EXPECT_EQ(open().identity(), identity);
  config_.data.blend[0] = "2 " + (folder_ / "long");
  EXPECT_NE(open().identity(), identity);
}

TEST_F(TrainingBlendTest, NamesTheCorpusThatCannotBeUsed) {
  write_dataset(folder_ / "tiny", std::vector(10, std::vector<int32_t>(1, 65)));
  write_dataset(folder_ / "wide", std::vector(10, std::vector<int32_t>(25, 66)), TokenType::kI32);
  write_dataset(folder_ / "other", std::vector(10, std::vector<int32_t>(25, 300)));
  const auto refusal_of = [&](const std::string& name) {
    config_.data.blend[1] = "1 " + (folder_ / name);
    return refusal();
  };
  EXPECT_THAT(refusal_of("missing"),
              HasSubstr("data.blend: \"" + (folder_ / "missing") + "\": there is no such"));
  EXPECT_THAT(refusal_of("tiny"), HasSubstr("tiny' has 8 tokens, but one sample needs"));
  EXPECT_THAT(refusal_of("wide"), HasSubstr("long' has u16 tokens and '" + (folder_ / "wide") +
                                            "' has i32: they were made with different tokenizers"));
  EXPECT_THAT(refusal_of("other"), AllOf(HasSubstr("other"), HasSubstr("300")));
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

TEST_F(TrainingDataTest, DocumentMasksNeedEndsOfDocuments) {
  config_.data.document_mask = true;
  open();
  config_.data.append_eod = false;
  EXPECT_THAT(
      message_of<ConfigError>([&] { open(); }),
      AllOf(HasSubstr("data.document_mask = true: none of the first 60 documents of '"),
            HasSubstr("text.txt' ends with token 256"), HasSubstr("data.append_eod = true")));
  write_dataset(folder_ / "ids", counting_sequences({50, 60, 70, 80, 90}));
  config_.data.train = folder_ / "ids";
  config_.data.tokenizer = "ids:400";
  EXPECT_THAT(message_of<ConfigError>([&] { open(); }),
              HasSubstr("data.document_mask = true: ids:400 has no token that ends a document"));
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
