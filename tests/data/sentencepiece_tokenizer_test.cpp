#include "data/sentencepiece_tokenizer.h"

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
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPlenty = int64_t{1} << 30;
constexpr int32_t kVocabulary = 380;

/// A character of any plane; most of them rare.
std::string random_character(RandomState& random) {
  static const char* const kAwkward[] = {
      " ",   "  ",     "\n",    "\t",     "\r\n",         "\xE2\x96\x81", "\xE2\x96\x85",
      "<s>", "</s>",   "<unk>", "<0x41>", "\xEF\xBF\xBD", "\xEF\xBB\xBF", "e\xCC\x81",
      "the", "stream "};
  const uint64_t kind = random.next_at_most(3);
  if (kind == 0) {
    return kAwkward[random.next_at_most(15)];
  }
  if (kind == 1) {
    return std::string(1, static_cast<char>(random.next_at_most(127)));
  }
  const auto code = static_cast<uint32_t>(0x800 + random.next_at_most(0xCFFF));
  std::string bytes;
  bytes += static_cast<char>(0xE0 | (code >> 12));
  bytes += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
  bytes += static_cast<char>(0x80 | (code & 0x3F));
  return bytes;
}

class SentencePieceTest : public ::testing::TestWithParam<SentencePieceKind> {
 protected:
  SentencePieceTest() {
    write_test_file(folder_ / "text.txt", sample_text(300));
    SentencePieceTrainOptions options;
    options.inputs = {folder_ / "text.txt"};
    options.output_prefix = folder_ / "a";
    options.vocabulary_size = kVocabulary;
    options.kind = GetParam();
    train_sentencepiece(options);
  }

  TempFolder folder_;
  std::string path_ = folder_ / "a.model";
};

TEST_P(SentencePieceTest, RoundTripsArbitraryText) {
  const auto tokenizer = load_tokenizer(path_);
  EXPECT_EQ(tokenizer->name(), path_);
  EXPECT_EQ(tokenizer->vocabulary_size(), kVocabulary);
  EXPECT_EQ(tokenizer->eod_id(), 2);
  std::vector<std::string> texts = {"",
                                    " ",
                                    "   ",
                                    "\n",
                                    "\n\n\n",
                                    " a",
                                    "a ",
                                    "\ta\r\n  b",
                                    std::string("nul \0 inside", 12),
                                    sample_text(20, 5),
                                    "\xF0\x9F\x98\x80 \xE6\x97\xA5\xE6\x9C\xAC",
                                    "\xE2\x96\x81",
                                    "\xE2\x96\x81\xE2\x96\x81 \xE2\x96\x81"};
  RandomState random(17);
  for (int i = 0; i < 200; ++i) {
    std::string& text = texts.emplace_back();
    for (uint64_t left = random.next_at_most(40); left > 0; --left) {
      text += random_character(random);
    }
  }
  for (const std::string& text : texts) {
    const std::vector<int32_t> tokens = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(tokens), text);
    std::string one_by_one;
    for (const int32_t token : tokens) {
      one_by_one += tokenizer->decode(std::span(&token, 1));
    }
    EXPECT_EQ(one_by_one, text);
  }
}

TEST_P(SentencePieceTest, CompressesTheTextThatItLearnt) {
  const auto tokenizer = load_tokenizer(path_);
  const std::string text = sample_text(100, 9);
  EXPECT_LT(tokenizer->encode(text).size(), text.size() * 2 / 3);
}

TEST_P(SentencePieceTest, RefusesBadTextAndIds) {
  const auto tokenizer = load_tokenizer(path_);
  EXPECT_THAT(message_of<DataError>([&] { tokenizer->encode("ab\xFF"); }),
              AllOf(HasSubstr("byte 2"), HasSubstr("0xFF"), HasSubstr(path_)));
  EXPECT_THAT(message_of<DataError>([&] { tokenizer->decode(std::vector<int32_t>{kVocabulary}); }),
              AllOf(HasSubstr("380"), HasSubstr(path_)));
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 2}), "");
}

TEST_P(SentencePieceTest, RefusesEveryTruncationQuietly) {
  ::testing::internal::CaptureStderr();
  for (uintmax_t size = std::filesystem::file_size(path_); size-- > 0;) {
    std::filesystem::resize_file(path_, size);
    EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(path_); }), HasSubstr(path_));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

/// A protocol buffer field of bytes shorter than 128.
std::string field(int number, std::string_view content) {
  std::string bytes = {static_cast<char>(number << 3 | 2), static_cast<char>(content.size())};
  return bytes + std::string(content);
}

TEST_P(SentencePieceTest, RefusesAnEmptyPiece) {
  // Such a piece is in no real model; the library throws an exception of its own for it.
  const std::string model = read_text_file(path_, kPlenty);
  write_test_file(path_, field(1, field(1, "")) + model);
  EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(path_); }), HasSubstr(path_));
}

TEST_P(SentencePieceTest, SurvivesCorruptBytes) {
  const std::string model = read_text_file(path_, kPlenty);
  const std::string text = sample_text(3, 2) + "\xE2\x96\x81 \xF0\x9F\x98\x80";
  RandomState random(23);
  for (int i = 0; i < 400; ++i) {
    std::string bytes = model;
    bytes[random.next_at_most(bytes.size() - 1)] = static_cast<char>(random.next_at_most(255));
    write_test_file(folder_ / "bad.model", bytes);
    try {
      const auto tokenizer = load_tokenizer(folder_ / "bad.model");
      for (const int32_t token : tokenizer->encode(text)) {
        ASSERT_GE(token, 0);
        ASSERT_LT(token, tokenizer->vocabulary_size());
      }
    } catch (const DataError&) {
    }
  }
}

// Numbers of a protocol buffer that end with the file, or never.
TEST(SentencePieceFile, RefusesNumbersWithoutAnEnd) {
  const TempFolder folder;
  const std::string path = folder / "model";
  for (const std::string& bytes :
       {std::string("\x80"), std::string("\x12\x80"), std::string(20, '\xFF')}) {
    write_test_file(path, bytes);
    EXPECT_EQ(message_of<DataError>([&] { load_sentencepiece(path); }),
              fmt::format("'{}' is not a SentencePiece model, or is truncated", path));
  }
}

// Models by hand, with pieces that training does not make.
class HandMadeModel : public ::testing::Test {
 protected:
  enum Type : char { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

  static std::string piece(std::string_view text, Type type) {
    const float score = -static_cast<float>(text.size());
    std::string content = field(1, text) + '\x15';
    content.append(reinterpret_cast<const char*>(&score), sizeof score);
    return field(1, content + '\x18' + static_cast<char>(type));
  }

  static std::string byte_pieces() {
    std::string pieces;
    for (int byte = 0; byte < 256; ++byte) {
      pieces += piece(fmt::format("<0x{:02X}>", byte), kByte);
    }
    return pieces;
  }

  /// The path of a unigram model with bytes instead of unknown characters, without normalisation.
  std::string model(const std::string& pieces) const {
    write_test_file(path_, piece("<unk>", kUnknown) + pieces + field(2, "\x18\x01\x98\x02\x01") +
                               field(3, field(1, "identity")));
    return path_;
  }

  std::string fault_of(const std::string& pieces) const {
    return message_of<DataError>([&] { load_sentencepiece(model(pieces)); });
  }

  TempFolder folder_;
  std::string path_ = folder_ / "model";
};

TEST_F(HandMadeModel, MayLackAnEndOfDocuments) {
  const std::string pieces = byte_pieces() + piece("a", kNormal);
  EXPECT_EQ(load_sentencepiece(model(pieces))->eod_id(), std::nullopt);
  EXPECT_EQ(load_sentencepiece(model(piece("</s>", kControl) + pieces))->eod_id(), 1);
}

TEST_F(HandMadeModel, MayPutASpaceBeforeEveryText) {
  const auto tokenizer = load_sentencepiece(model(byte_pieces() + piece("\xE2\x96\x81", kNormal)));
  const std::vector<int32_t> tokens = tokenizer->encode("a b");
  EXPECT_EQ(tokens, (std::vector<int32_t>{257, 1 + 'a', 257, 1 + 'b'}));
  EXPECT_EQ(tokenizer->decode(tokens), "a b");
}

TEST_F(HandMadeModel, RefusesPiecesThatAreNoBytes) {
  for (const char* const bad : {"<0x4>", "<1x41>", "<0x41)", "<0xZZ>", "<0x4Z>", "A"}) {
    EXPECT_THAT(fault_of(piece(bad, kByte) + byte_pieces()),
                AllOf(HasSubstr(path_), HasSubstr(bad)));
  }
}

TEST_F(HandMadeModel, RefusesAModelWithoutPieces) {
  write_test_file(path_, field(2, "\x18\x01") + field(3, field(1, "identity")));
  EXPECT_THAT(message_of<DataError>([&] { load_sentencepiece(path_); }), HasSubstr(path_));
}

TEST_F(HandMadeModel, ErrorsAreOneLine) {
  const std::string twice = piece("a\nb\rc", kNormal) + piece("a\nb\rc", kNormal);
  EXPECT_THAT(fault_of(twice), AllOf(HasSubstr("a b c"), Not(HasSubstr("\n"))));
}

INSTANTIATE_TEST_SUITE_P(Kinds, SentencePieceTest,
                         ::testing::Values(SentencePieceKind::kBpe, SentencePieceKind::kUnigram),
                         [](const auto& kind) {
                           return kind.param == SentencePieceKind::kBpe ? "Bpe" : "Unigram";
                         });

}  // namespace
}  // namespace braid
