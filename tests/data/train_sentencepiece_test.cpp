#include "data/train_sentencepiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "data/test_text.h"
#include "data/tokenizer.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPlenty = int64_t{1} << 30;

class TrainSentencePieceTest : public ::testing::Test {
 protected:
  TrainSentencePieceTest() { write(sample_text(400)); }

  void write(std::string_view text) { write_test_file(folder_ / "text.txt", text); }
  SentencePieceTrainOptions options(int64_t vocabulary_size = 380) const {
    SentencePieceTrainOptions result;
    result.inputs = {folder_ / "text.txt"};
    result.output_prefix = folder_ / "a";
    result.vocabulary_size = vocabulary_size;
    return result;
  }
  /// Trains and returns the bytes of the model.
  std::string train(const SentencePieceTrainOptions& options) const {
    return read_text_file(train_sentencepiece(options), kPlenty);
  }

  TempFolder folder_;
};

TEST_F(TrainSentencePieceTest, WritesOneFileAndPrintsNothing) {
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(train_sentencepiece(options()), folder_ / "a.model");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(folder_.num_entries(), 2);
}

TEST_F(TrainSentencePieceTest, IsDeterministic) {
  write(sample_text(4'000));
  for (const SentencePieceKind kind : {SentencePieceKind::kBpe, SentencePieceKind::kUnigram}) {
    SentencePieceTrainOptions with = options();
    with.kind = kind;
    with.threads = 2;
    with.max_training_bytes = 50'000;
    EXPECT_EQ(train(with), train(with));
  }
}

TEST_F(TrainSentencePieceTest, ChoosesTextBySeedIfThereIsTooMuch) {
  std::string text;
  for (int part = 0; part < 64; ++part) {  // each part is a chunk with a word of its own
    text += sample_text(110, 3).substr(0, 4000) +
            std::string(20, static_cast<char>('A' + part % 26)) + "\n";
  }
  write(text);
  SentencePieceTrainOptions with = options();
  with.max_training_bytes = static_cast<int64_t>(text.size()) / 4;
  with.seed = 1;
  const std::string first = train(with);
  EXPECT_EQ(train(with), first);
  with.seed = 2;
  EXPECT_NE(train(with), first);
}

TEST_F(TrainSentencePieceTest, LearnsFromLinesOfAnyLength) {
  std::string line = sample_text(3'000);
  std::replace(line.begin(), line.end(), '\n', ' ');
  ASSERT_GT(line.size(), 50'000u);
  write(line);
  train(options());
  const auto tokenizer = load_tokenizer(folder_ / "a.model");
  const std::string text = "the quick program jumps over lazy gradient";
  EXPECT_LT(tokenizer->encode(text).size(), text.size() / 2);
}

TEST_F(TrainSentencePieceTest, TakesTextWithoutAnyPlaceToCut) {
  std::string text = "x";
  for (int i = 0; i < 5'000; ++i) {
    text += i % 3 == 0 ? "\xE6\x97\xA5" : i % 3 == 1 ? "\xE6\x9C\xAC" : "ab";
  }
  write(text);
  train(options(265));
  const auto tokenizer = load_tokenizer(folder_ / "a.model");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(tokenizer->encode(text).size(), text.size() / 3);
}

TEST_F(TrainSentencePieceTest, NamesTheVocabularyThatIsPossible) {
  EXPECT_THAT(message_of<ConfigError>([&] { train(options(100'000)); }),
              AllOf(HasSubstr("100000 is too large"), HasSubstr("at most")));
  EXPECT_THAT(message_of<ConfigError>([&] { train(options(270)); }),
              AllOf(HasSubstr("270 is too small"), HasSubstr("at least")));
  EXPECT_THAT(message_of<ConfigError>([&] { train(options(10)); }), HasSubstr("260"));
  EXPECT_THROW(train(options(INT64_MAX)), ConfigError);
  SentencePieceTrainOptions with = options();
  with.threads = 0;
  EXPECT_THROW(train(with), ConfigError);
  with = options();
  with.max_training_bytes = 0;
  EXPECT_THROW(train(with), ConfigError);
  EXPECT_EQ(folder_.num_entries(), 1);
}

TEST_F(TrainSentencePieceTest, NamesBadFiles) {
  SentencePieceTrainOptions with = options();
  with.inputs = {folder_ / "none.txt"};
  EXPECT_THAT(message_of<DataError>([&] { train(with); }), HasSubstr("none.txt"));
  with = options();
  with.output_prefix = folder_ / "no/a";
  EXPECT_THAT(message_of<DataError>([&] { train(with); }), HasSubstr("no/a.model"));
  with = options();
  with.max_training_bytes = 1;
  EXPECT_THAT(message_of<DataError>([&] { train(with); }),
              AllOf(HasSubstr("text.txt"), HasSubstr("choice of 1 bytes")));
  EXPECT_EQ(folder_.num_entries(), 1);
}

TEST_F(TrainSentencePieceTest, LeavesNothingOnAFullDisk) {
  std::string message;
  {
    const FileSizeLimit limit(1000);
    message = message_of<DataError>([&] { train(options()); });
  }
  EXPECT_THAT(message, AllOf(HasSubstr("a.model"), HasSubstr("File too large")));
  EXPECT_EQ(folder_.num_entries(), 1);
}

TEST(ParseSentencePieceKind, KnowsTwoKinds) {
  EXPECT_EQ(parse_sentencepiece_kind("bpe", "--kind"), SentencePieceKind::kBpe);
  EXPECT_EQ(parse_sentencepiece_kind("unigram", "--kind"), SentencePieceKind::kUnigram);
  EXPECT_THAT(message_of<ConfigError>([] { parse_sentencepiece_kind("word", "--kind"); }),
              AllOf(HasSubstr("--kind"), HasSubstr("word"), HasSubstr("unigram")));
}

}  // namespace
}  // namespace braid
