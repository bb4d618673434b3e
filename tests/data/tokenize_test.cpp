#include "data/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "data/compressed_text.h"
#include "data/decompressor.h"
#include "data/indexed_dataset.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenizeTest : public ::testing::Test {
 protected:
  TokenizeOptions options(const std::string& name, std::string_view content) const {
    write_test_file(folder_ / name, content);
    TokenizeOptions result;
    result.inputs = {folder_ / name};
    result.output_prefix = folder_ / "out";
    result.documents.text = {.document_break = DocumentBreak::kMarkerLine, .marker = "%"};
    return result;
  }
  std::vector<std::vector<int32_t>> sequences() const {
    const IndexedDataset dataset(folder_ / "out");
    EXPECT_EQ(dataset.index().num_documents(), dataset.index().num_sequences());
    std::vector<std::vector<int32_t>> result;
    for (int64_t i = 0; i < dataset.index().num_sequences(); ++i) {
      dataset.read(i, 0, result.emplace_back(static_cast<size_t>(dataset.index().length(i))));
    }
    return result;
  }

  TempFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = load_tokenizer("bytes");
};

using Sequences = std::vector<std::vector<int32_t>>;

TEST_F(TokenizeTest, WritesOneSequencePerDocument) {
  const TokenizeStatistics statistics = tokenize_files(*bytes_, options("a.txt", "ab\n%\nc\n"));
  EXPECT_EQ(sequences(), (Sequences{{'a', 'b', 256}, {'c', 256}}));
  EXPECT_EQ(statistics.documents, 2);
  EXPECT_EQ(statistics.empty_documents, 0);
  EXPECT_EQ(statistics.tokens, 5);
  EXPECT_EQ(statistics.text_bytes, 3);
  EXPECT_EQ(statistics.file_bytes, 7);
  EXPECT_EQ(IndexedDataset(folder_ / "out").index().token_type(), TokenType::kU16);
}

TEST_F(TokenizeTest, LeavesOutEodIfAsked) {
  TokenizeOptions with = options("a.txt", "ab\n%\nc\n");
  with.append_eod = false;
  EXPECT_EQ(tokenize_files(*bytes_, with).tokens, 3);
  EXPECT_EQ(sequences(), (Sequences{{'a', 'b'}, {'c'}}));
}

TEST_F(TokenizeTest, ReadsJsonLinesAndSkipsEmptyDocuments) {
  const TokenizeStatistics statistics = tokenize_files(
      *bytes_, options("a.jsonl", "{\"text\":\"x\"}\n{\"text\":\"\"}\n{\"text\":\"%\\ny\"}\n"));
  EXPECT_EQ(sequences(), (Sequences{{'x', 256}, {'%', '\n', 'y', 256}}));
  EXPECT_EQ(statistics.documents, 2);
  EXPECT_EQ(statistics.empty_documents, 1);
}

TEST_F(TokenizeTest, ReportsProgressUpToTheEndOfTheFile) {
  TokenizeOptions with = options("a.txt", "ab\n%\nc\n%\ndef");
  std::vector<int64_t> done_bytes;
  with.progress = [&](const TokenizeProgress& progress) {
    done_bytes.push_back(progress.done_bytes);
    EXPECT_EQ(progress.so_far.documents, static_cast<int64_t>(done_bytes.size()));
    EXPECT_EQ(progress.so_far.file_bytes, 12);
  };
  tokenize_files(*bytes_, with);
  EXPECT_THAT(done_bytes, ::testing::ElementsAre(2, 6, 12));
}

TEST_F(TokenizeTest, ReadsSeveralFilesOneAfterTheOther) {
  TokenizeOptions with = options("a.txt", "ab\n%\nc\n");
  write_test_file(folder_ / "b.jsonl", kTwoJsonLines);
  with.inputs.push_back(folder_ / "b.jsonl");
  std::vector<int64_t> done_bytes;
  with.progress = [&](const TokenizeProgress& now) { done_bytes.push_back(now.done_bytes); };
  EXPECT_EQ(tokenize_files(*bytes_, with).file_bytes, 7 + 28);
  EXPECT_EQ(sequences(),
            (Sequences{{'a', 'b', 256}, {'c', 256}, {'a', 'b', 256}, {'c', 'd', 256}}));
  EXPECT_THAT(done_bytes, ::testing::ElementsAre(2, 6, 7 + 14, 7 + 28));
}

TEST_F(TokenizeTest, ReadsCompressedFilesAndLeavesNothingOfABrokenOne) {
  if (describe_decompressors().find("gzip missing") != std::string::npos) {
    GTEST_SKIP() << "gzip is not in this build";
  }
  EXPECT_EQ(tokenize_files(*bytes_, options("a.jsonl.gz", kTwoJsonLinesGzip)).documents, 2);
  EXPECT_EQ(sequences(), (Sequences{{'a', 'b', 256}, {'c', 'd', 256}}));
  TokenizeOptions broken =
      options("b.jsonl.gz", kTwoJsonLinesGzip.substr(0, kTwoJsonLinesGzip.size() - 1));
  broken.output_prefix = folder_ / "other";
  EXPECT_THAT(message_of<DataError>([&] { tokenize_files(*bytes_, broken); }),
              HasSubstr("b.jsonl.gz' after line 2: its gzip data end too early"));
  EXPECT_EQ(folder_.num_entries(), 2 + 2);
}

TEST_F(TokenizeTest, NamesTheFirstDocumentThatIsBroken) {
  std::string lines;
  for (int i = 1; i <= 200; ++i) {
    lines += i == 40 || i % 90 == 0 ? "{\"text\":3}\n" : "{\"text\":\"a\"}\n";
  }
  TokenizeOptions with = options("a.jsonl", lines);
  with.threads = 4;
  EXPECT_THAT(message_of<DataError>([&] { tokenize_files(*bytes_, with); }),
              HasSubstr("a.jsonl' line 40: member \"text\" is a JSON number"));
}

TEST_F(TokenizeTest, ChangesNothingOnAnError) {
  tokenize_files(*bytes_, options("a.txt", "old"));
  EXPECT_THAT(message_of<DataError>([&] {
                tokenize_files(*bytes_, options("b.jsonl", "{\"text\":\"new\"}\n{\"text\":3}\n"));
              }),
              AllOf(HasSubstr("b.jsonl"), HasSubstr("line 2")));
  EXPECT_THAT(message_of<DataError>(
                  [&] { tokenize_files(*bytes_, options("c.jsonl", "{\"text\":\"\"}")); }),
              AllOf(HasSubstr("c.jsonl"), HasSubstr("no tokens")));
  const TokenizeOptions large = options("d.txt", std::string(200'000, 'x'));
  std::string message;
  {
    const FileSizeLimit limit(10'000);
    message = message_of<DataError>([&] { tokenize_files(*bytes_, large); });
  }
  EXPECT_THAT(message, AllOf(HasSubstr(folder_ / "out.bin"), HasSubstr("File too large")));
  EXPECT_EQ(sequences(), (Sequences{{'o', 'l', 'd', 256}}));
  EXPECT_EQ(folder_.num_entries(), 4 + 2);
}

TEST_F(TokenizeTest, WritesTheSameWithAnyNumberOfThreads) {
  std::string text;
  for (int i = 0; i < 60'000; ++i) {  // more than one batch of 4 MiB
    text += std::string(static_cast<size_t>(i % 200), static_cast<char>('a' + i % 26)) + "\n%\n";
  }
  TokenizeOptions with = options("a.txt", text);
  const TokenizeStatistics one = tokenize_files(*bytes_, with);
  const std::string idx = read_text_file(folder_ / "out.idx", INT64_MAX);
  const std::string bin = read_text_file(folder_ / "out.bin", INT64_MAX);
  with.threads = 3;
  EXPECT_EQ(tokenize_files(*bytes_, with).tokens, one.tokens);
  EXPECT_EQ(read_text_file(folder_ / "out.idx", INT64_MAX), idx);
  EXPECT_EQ(read_text_file(folder_ / "out.bin", INT64_MAX), bin);
  with.threads = 0;
  EXPECT_THROW(tokenize_files(*bytes_, with), ConfigError);
}

/// Fails on a text with an x.
class FailingTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    if (text.find('x') != std::string_view::npos) {
      throw_data_error("no x please");
    }
    return {1};
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  int32_t vocabulary_size() const override { return 3; }
  std::optional<int32_t> eod_id() const override { return 2; }
  const std::string& name() const override { return name_; }
  std::string describe() const override { return name_; }

 private:
  std::string name_ = "failing";
};

TEST_F(TokenizeTest, PassesOnAnErrorOfAnyThread) {
  TokenizeOptions with = options("a.txt", "a\n%\nb\n%\nx\n%\nc\n%\nd\n");
  with.threads = 3;
  EXPECT_THAT(message_of<DataError>([&] { tokenize_files(FailingTokenizer(), with); }),
              HasSubstr("a.txt', the document up to line 6: no x please"));
  EXPECT_EQ(folder_.num_entries(), 1);
}

/// Puts a 1 before every text, and a 2, its end of document, behind it.
class FramingTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    return std::vector<int32_t>(text.size(), 7);
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  int32_t vocabulary_size() const override { return 8; }
  std::optional<int32_t> eod_id() const override { return 2; }
  TextFrame frame() const override { return {.before = {1}, .after = {2}}; }
  const std::string& name() const override { return name_; }
  std::string describe() const override { return name_; }

 private:
  std::string name_ = "framing";
};

TEST_F(TokenizeTest, PutsTheFrameAroundDocumentsAndOneEnd) {
  tokenize_files(FramingTokenizer(), options("a.txt", "ab\n%\nc\n"));
  EXPECT_EQ(sequences(), (Sequences{{1, 7, 7, 2}, {1, 7, 2}}));
}

TEST_F(TokenizeTest, ReplacesInvalidBytesIfAsked) {
  TokenizeOptions with = options("a.txt", "a\xFF\n%\nb\xE2\x82\n");
  EXPECT_THROW(tokenize_files(*bytes_, with), DataError);
  with.documents.text.replaces_invalid = true;
  with.append_eod = false;
  tokenize_files(*bytes_, with);
  EXPECT_EQ(sequences(), (Sequences{{'a', 0xEF, 0xBF, 0xBD}, {'b', 0xEF, 0xBF, 0xBD}}));
}

class NoEodTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    return std::vector<int32_t>(text.size(), 70'000);
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  int32_t vocabulary_size() const override { return 70'001; }
  std::optional<int32_t> eod_id() const override { return std::nullopt; }
  const std::string& name() const override { return name_; }
  std::string describe() const override { return name_; }

 private:
  std::string name_ = "no-eod";
};

TEST_F(TokenizeTest, RefusesEodWhereThereIsNone) {
  TokenizeOptions with = options("a.txt", "ab");
  EXPECT_THAT(message_of<ConfigError>([&] { tokenize_files(NoEodTokenizer(), with); }),
              AllOf(HasSubstr("no-eod"), HasSubstr("append_eod")));
  with.append_eod = false;
  tokenize_files(NoEodTokenizer(), with);
  EXPECT_EQ(sequences(), (Sequences{{70'000, 70'000}}));
  EXPECT_EQ(IndexedDataset(folder_ / "out").index().token_type(), TokenType::kI32);
}

TEST_F(TokenizeTest, WritesWhichTokensOfAChatAreAnswers) {
  TokenizeOptions chat = options("a.jsonl", R"({"prompt": "ab", "completion": "c"})"
                                            "\n"
                                            R"({"prompt": "", "completion": "de"})");
  chat.chat = ChatTemplate::kPlain;
  EXPECT_EQ(tokenize_files(*bytes_, chat).answer_tokens, 5);
  EXPECT_EQ(sequences(), (Sequences{{'a', 'b', 'c', 256}, {'d', 'e', 256}}));
  const IndexedDataset mask(mask_prefix(folder_ / "out"));
  std::vector<int32_t> of_first(4);
  mask.read(0, 0, of_first);
  EXPECT_EQ(of_first, (std::vector<int32_t>{0, 0, 1, 1}));
  chat.chat = ChatTemplate::kChatml;
  EXPECT_EQ(tokenize_files(*bytes_, chat).answer_tokens, 3 + 2 * 10);
  chat.inputs = {folder_ / "a.txt"};
  EXPECT_THAT(message_of<ConfigError>([&] { tokenize_files(*bytes_, chat); }),
              HasSubstr("--chat needs JSONL"));
}

TEST_F(TokenizeTest, WritesPairsAsTwoDocuments) {
  TokenizeOptions pairs = options("a.jsonl", R"({"prompt": "ab", "chosen": "c", "rejected": "de"})"
                                             "\n"
                                             R"({"chosen": "xy", "rejected": "xz"})"
                                             "\n");
  pairs.chat = ChatTemplate::kPlain;
  pairs.pairs = true;
  const TokenizeStatistics statistics = tokenize_files(*bytes_, pairs);
  EXPECT_EQ(statistics.documents, 4);
  EXPECT_EQ(statistics.answer_tokens, 2 + 3 + 2 + 2);
  EXPECT_EQ(
      sequences(),
      (Sequences{
          {'a', 'b', 'c', 256}, {'a', 'b', 'd', 'e', 256}, {'x', 'y', 256}, {'x', 'z', 256}}));
  const IndexedDataset mask(mask_prefix(folder_ / "out"));
  std::vector<int32_t> of_second(5);
  mask.read(1, 0, of_second);
  EXPECT_THAT(of_second, ::testing::ElementsAre(0, 0, 1, 1, 1));
}

}  // namespace
}  // namespace braid
