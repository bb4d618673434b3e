#include "data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "data/test_text.h"
#include "data/train_sentencepiece.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ByteTokenizer, MapsBytesToThemselves) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(tokenizer->name(), "bytes");
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->eod_id(), 256);
  EXPECT_THAT(tokenizer->encode("a\n\xFF"), ElementsAre('a', '\n', 255));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'h', 256, 'i', 0xFF}), "hi\xFF");
  std::string all;
  for (int i = 0; i < 256; ++i) {
    all.push_back(static_cast<char>(i));
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all)), all);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("")), "");
}

TEST(ByteTokenizer, RefusesIdsOutsideTheVocabulary) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_THAT(message_of<DataError>([&] { tokenizer->decode(std::vector<int32_t>{257}); }),
              AllOf(HasSubstr("257"), HasSubstr("bytes")));
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
}

TEST(IdTokenizer, OnlyKnowsHowManyIdsThereAre) {
  const auto tokenizer = load_tokenizer("ids:128256");
  EXPECT_EQ(tokenizer->name(), "ids:128256");
  EXPECT_EQ(tokenizer->vocabulary_size(), 128256);
  EXPECT_EQ(tokenizer->eod_id(), std::nullopt);
  EXPECT_THAT(message_of<ConfigError>([&] { tokenizer->encode("text"); }),
              AllOf(HasSubstr("ids:128256"), HasSubstr("\"bytes\"")));
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{1}), ConfigError);
  for (const char* name :
       {"ids:", "ids:0", "ids:-3", "ids:12x", "ids:16777217", "ids:9999999999"}) {
    EXPECT_THAT(message_of<ConfigError>([&] { load_tokenizer(name); }),
                AllOf(HasSubstr(name), HasSubstr("16777216")));
  }
}

TEST(LoadTokenizer, RefusesWhatIsNoTokenizer) {
  const TempFolder folder;
  EXPECT_THROW(load_tokenizer(""), ConfigError);
  EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(folder / "none.model"); }),
              AllOf(HasSubstr("none.model"), HasSubstr("No such file"), HasSubstr("\"bytes\"")));
  write_test_file(folder / "text.model", std::string_view("this is not a model"));
  EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(folder / "text.model"); }),
              AllOf(HasSubstr("text.model"), HasSubstr("not a SentencePiece model")));
  write_test_file(folder / "empty.model", std::string_view());
  EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(folder / "empty.model"); }),
              AllOf(HasSubstr("empty.model"), HasSubstr("truncated")));
}

TEST(TokenizerIdentity, FollowsTheContentOfAFileAndNotItsName) {
  EXPECT_EQ(tokenizer_identity(*load_tokenizer("bytes")), "bytes");
  EXPECT_EQ(tokenizer_identity(*load_tokenizer("ids:7")), "ids:7");
  const TempFolder folder;
  write_test_file(folder / "text.txt", sample_text(200));
  const auto trained = [&](const std::string& name, int64_t vocabulary) {
    return tokenizer_identity(
        *load_tokenizer(train_sentencepiece({.inputs = {folder / "text.txt"},
                                             .output_prefix = folder / name,
                                             .vocabulary_size = vocabulary})));
  };
  const std::string one = trained("one", 300);
  EXPECT_EQ(trained("two", 300), one);
  EXPECT_NE(trained("three", 310), one);
}

}  // namespace
}  // namespace braid
