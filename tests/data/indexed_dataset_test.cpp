#include "data/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "data/test_dataset.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPlenty = int64_t{1} << 30;

std::string from_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'A' + 10; };
  std::string bytes;
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') {
      digits.push_back(c);
    }
  }
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<char>(digit(digits[i]) * 16 + digit(digits[i + 1])));
  }
  return bytes;
}

/// u16, documents [[1,2,3],[4,5]], one sequence each (reference/megatron format, computed by hand).
std::string golden_idx() {
  return from_hex(
      "4D4D49444944580000 0100000000000000 08 0200000000000000 0300000000000000"
      "03000000 02000000 0000000000000000 0600000000000000"
      "0000000000000000 0100000000000000 0200000000000000");
}
std::string golden_bin() {
  return from_hex("0100 0200 0300 0400 0500");
}

std::string checksum_of_text(const std::string& text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

SequenceIndex parse(const std::string& idx, int64_t bin_size_bytes) {
  return parse_index(std::as_bytes(std::span(idx)), bin_size_bytes, "x.idx");
}

template <class T>
std::string with(std::string bytes, size_t position, T value) {
  std::memcpy(bytes.data() + position, &value, sizeof(T));
  return bytes;
}

std::string rejection(const std::string& idx, int64_t bin_size_bytes = 10) {
  return message_of<DataError>([&] { parse(idx, bin_size_bytes); });
}

std::vector<int32_t> read_all(const IndexedDataset& dataset, int64_t sequence) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.index().length(sequence)));
  dataset.read(sequence, 0, tokens);
  return tokens;
}

TEST(IndexedDatasetWriter, WritesTheGoldenBytes) {
  const TempFolder folder;
  write_dataset(folder / "a", {{1, 2, 3}, {4, 5}});
  EXPECT_EQ(golden_idx().size(), 82u);
  EXPECT_EQ(
      read_text_file(folder / "a.idx", kPlenty),
      golden_idx() + "BRAIDSUM" + checksum_of_text(golden_bin()) + checksum_of_text(golden_idx()));
  EXPECT_EQ(read_text_file(folder / "a.bin", kPlenty), golden_bin());
  EXPECT_EQ(folder.num_entries(), 2);
}

TEST(IndexedDataset, ReadsTheGoldenBytesByAnyNameOfTheDataset) {
  const TempFolder folder;
  write_test_file(folder / "a.idx", golden_idx());
  write_test_file(folder / "a.bin", golden_bin());
  for (const char* name : {"a", "a.bin", "a.idx"}) {
    const IndexedDataset dataset(folder / name);
    EXPECT_EQ(dataset.prefix(), folder / "a");
    EXPECT_EQ(dataset.index().num_tokens(), 5);
    EXPECT_EQ(dataset.index().num_documents(), 2);
    EXPECT_EQ(dataset.all_sequences(), (SequenceRange{0, 2}));
    EXPECT_THAT(read_all(dataset, 0), ElementsAre(1, 2, 3));
    EXPECT_THAT(read_all(dataset, 1), ElementsAre(4, 5));
    std::vector<int32_t> part(2);
    dataset.read(0, 1, part);
    EXPECT_THAT(part, ElementsAre(2, 3));
  }
}

TEST(IndexedDataset, RoundTripsEveryTokenType) {
  const std::pair<TokenType, int32_t> limits[] = {
      {TokenType::kU8, 255},    {TokenType::kI8, 127},      {TokenType::kI16, 32767},
      {TokenType::kU16, 65535}, {TokenType::kI32, 1 << 30}, {TokenType::kI64, 1 << 30}};
  for (const auto& [type, limit] : limits) {
    const TempFolder folder;
    write_dataset(folder / "a", {{0, limit, 1}, {}, {limit}}, type);
    const IndexedDataset dataset(folder / "a");
    EXPECT_EQ(dataset.index().token_type(), type);
    EXPECT_THAT(read_all(dataset, 0), ElementsAre(0, limit, 1));
    EXPECT_THAT(read_all(dataset, 1), ElementsAre());
    EXPECT_THAT(read_all(dataset, 2), ElementsAre(limit));
  }
}

TEST(IndexedDataset, KeepsDocumentsOfSeveralSequencesAndEmptyOnes) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "a", TokenType::kI32);
  writer.add_sequence(std::vector<int32_t>{1});
  writer.add_sequence(std::vector<int32_t>{2, 3});
  writer.end_document();
  writer.end_document();
  writer.add_sequence(std::vector<int32_t>{4});
  writer.end_document();
  writer.commit();
  const IndexedDataset dataset(folder / "a");
  ASSERT_EQ(dataset.index().num_documents(), 3);
  EXPECT_EQ(dataset.index().document_begin(1), 2);
  EXPECT_EQ(dataset.index().document_begin(2), 2);
  EXPECT_EQ(dataset.index().document_begin(3), 3);
}

TEST(IndexedDataset, AcceptsAnEmptyDatasetAndModesAtTheEnd) {
  const TempFolder folder;
  write_dataset(folder / "a", {});
  EXPECT_EQ(IndexedDataset(folder / "a").index().num_tokens(), 0);
  EXPECT_EQ(parse(golden_idx() + std::string(2, '\1'), 10).num_tokens(), 5);
}

TEST(IndexedDataset, NoticesDamageByItsChecksums) {
  const TempFolder folder;
  write_dataset(folder / "a", {{1, 2, 3}, {4, 5}});
  const std::string idx = read_text_file(folder / "a.idx", kPlenty);
  EXPECT_NO_THROW(IndexedDataset(folder / "a").verify_tokens());
  write_test_file(folder / "a.bin", with<uint8_t>(golden_bin(), 2, 7));
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset(folder / "a").verify_tokens(); }),
              AllOf(HasSubstr("a.bin' is damaged: its XXH3 checksum is "), HasSubstr("expected ")));
  for (size_t at = 0; at < idx.size(); ++at) {
    const std::string damaged = with<uint8_t>(idx, at, static_cast<uint8_t>(idx[at] ^ 0x40));
    write_test_file(folder / "a.idx", damaged);
    // Also if it is the checksum of the .bin that is damaged.
    EXPECT_THROW(IndexedDataset(folder / "a").verify_tokens(), DataError) << at;
  }
  write_test_file(folder / "a.idx", golden_idx());  // as other programs write it
  EXPECT_EQ(IndexedDataset(folder / "a").index().checksums(), std::nullopt);
  EXPECT_NO_THROW(IndexedDataset(folder / "a").verify_tokens());
}

TEST(IndexedDataset, IdentityTellsOneTokenOfAMillion) {
  const TempFolder folder;
  write_dataset(folder / "a", {std::vector<int32_t>(1 << 20, 3)});
  const std::string before = IndexedDataset(folder / "a").identity();
  EXPECT_EQ(IndexedDataset(folder / "a").identity(), before);
  const std::string bin = read_text_file(folder / "a.bin", kPlenty);
  write_test_file(folder / "a.bin", with<uint8_t>(bin, 1000, 4));  // the index stays as it is
  EXPECT_NE(IndexedDataset(folder / "a").identity(), before);
}

TEST(IndexedDataset, ChoosesTheTokenTypeAsMegatronDoes) {
  EXPECT_EQ(token_type_for_vocabulary(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for_vocabulary(65500), TokenType::kI32);
}

TEST(IndexedDatasetWriter, RefusesTokensThatDoNotFit) {
  const TempFolder folder;
  {
    IndexedDatasetWriter writer(folder / "a", TokenType::kU16);
    EXPECT_THAT(message_of<DataError>([&] { writer.add_sequence(std::vector<int32_t>{65536}); }),
                AllOf(HasSubstr("65536"), HasSubstr("u16"), HasSubstr(folder / "a.bin")));
    EXPECT_THROW(writer.add_sequence(std::vector<int32_t>{-1}), DataError);
    IndexedDatasetWriter wide(folder / "b", TokenType::kI32);
    EXPECT_THROW(wide.add_sequence(std::vector<int32_t>{-1}), DataError);
  }
  EXPECT_EQ(folder.num_entries(), 0);
}

TEST(IndexedDatasetWriter, RefusesToCommitInsideADocument) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "a", TokenType::kU16);
  writer.add_sequence(std::vector<int32_t>{1});
  EXPECT_THROW(writer.commit(), InternalError);
}

TEST(IndexedDatasetWriter, LeavesNothingOnAFullDiskAndKeepsTheOldDataset) {
  const TempFolder folder;
  write_dataset(folder / "old", {{7}});
  for (const char* name : {"new", "old"}) {
    std::string message;
    {
      const FileSizeLimit limit(4096);
      message = message_of<DataError>(
          [&] { write_dataset(folder / name, {std::vector<int32_t>(10'000, 1)}); });
    }
    EXPECT_THAT(message, AllOf(HasSubstr(folder / name), HasSubstr("File too large")));
    EXPECT_EQ(folder.num_entries(), 2);
  }
  EXPECT_THAT(read_all(IndexedDataset(folder / "old"), 0), ElementsAre(7));
}

TEST(IndexedDatasetWriter, PublishesNothingIfOnlyTheIndexDoesNotFit) {
  const TempFolder folder;
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = message_of<DataError>([&] {  // 2,000 bytes of tokens, 40,000 bytes of index
      write_dataset(folder / "a", std::vector<std::vector<int32_t>>(2'000, {1}), TokenType::kU8);
    });
  }
  EXPECT_THAT(message, HasSubstr(folder / "a.idx"));
  EXPECT_EQ(folder.num_entries(), 0);
}

TEST(IndexedDatasetWriter, LeavesNoDatasetWhenKilled) {
  const TempFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    IndexedDatasetWriter writer(folder / "a", TokenType::kI32);
    writer.add_sequence(
        std::vector<int32_t>(200'000, 1));  // larger than the buffer, so that some of it is on disk
    writer.end_document();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(folder.num_entries(), 1);  // a *.tmp
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset dataset(folder / "a"); }),
              HasSubstr("No such file"));
  write_dataset(folder / "a", {{7}});
  EXPECT_THAT(read_all(IndexedDataset(folder / "a"), 0), ElementsAre(7));
}

TEST(IndexedDatasetWriter, NamesAFolderThatIsNotThere) {
  const TempFolder folder;
  EXPECT_THAT(
      message_of<DataError>([&] { IndexedDatasetWriter writer(folder / "no/a", TokenType::kU16); }),
      AllOf(HasSubstr(folder / "no/a.bin"), HasSubstr("No such file")));
}

TEST(IndexedDataset, IsAnotherIfTokensOrBoundariesDiffer) {
  const TempFolder folder;
  int count = 0;
  const auto identity = [&](const std::vector<std::vector<int32_t>>& sequences) {
    const std::string prefix = folder / std::to_string(count++);
    write_dataset(prefix, sequences);
    return IndexedDataset(prefix).identity();
  };
  const std::string own = identity({{1, 2, 3}, {4, 5}});
  EXPECT_THAT(own, HasSubstr("2 documents, 5 tokens, hash "));
  EXPECT_EQ(identity({{1, 2, 3}, {4, 5}}), own);
  EXPECT_NE(identity({{1, 2, 3}, {4, 6}}), own);
  EXPECT_NE(identity({{1, 2}, {3, 4, 5}}), own);
  EXPECT_THAT(identity({}), HasSubstr("0 documents, 0 tokens"));
  // Of long ones, too.
  std::vector<std::vector<int32_t>> longer = counting_sequences({20'000, 20'001});
  const std::string of_longer = identity(longer);
  longer[1].back() += 1;
  EXPECT_NE(identity(longer), of_longer);
}

TEST(IndexedDataset, RefusesMissingFiles) {
  const TempFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset dataset(folder / "a"); }),
              AllOf(HasSubstr(folder / "a.idx"), HasSubstr("No such file")));
  write_test_file(folder / "a.idx", golden_idx());
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset dataset(folder / "a"); }),
              AllOf(HasSubstr(folder / "a.bin"), HasSubstr("No such file")));
}

TEST(IndexedDataset, RefusesABinOfAnotherSize) {
  const TempFolder folder;
  write_test_file(folder / "a.idx", golden_idx());
  write_test_file(folder / "a.bin", golden_bin().substr(0, 9));
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset dataset(folder / "a"); }),
              AllOf(HasSubstr(folder / "a.idx"), HasSubstr("too short"), HasSubstr("9")));
  write_test_file(folder / "a.bin", golden_bin() + "xx");
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset dataset(folder / "a"); }),
              AllOf(HasSubstr("does not belong"), HasSubstr("10"), HasSubstr("12")));
}

TEST(IndexedDataset, FilesThatBecomeShorterAreAnError) {
  const TempFolder folder;
  std::vector<int32_t> tokens(30'000);  // more than a page, and more than one read
  std::iota(tokens.begin(), tokens.end(), 0);
  write_dataset(folder / "a", {{7, 8}, tokens});
  const IndexedDataset dataset(folder / "a");
  std::filesystem::resize_file(folder / "a.idx", 0);
  EXPECT_EQ(read_all(dataset, 1), tokens);
  std::filesystem::resize_file(folder / "a.bin", 2 * (2 + 20'000));
  EXPECT_THAT(read_all(dataset, 0), ElementsAre(7, 8));
  std::vector<int32_t> out(20'000);
  dataset.read(1, 0, out);
  EXPECT_EQ(out.back(), 19'999);
  EXPECT_EQ(message_of<DataError>([&] { read_all(dataset, 1); }),
            fmt::format("'{}' has become shorter while it was in use: it ends at or before byte "
                        "40004, but had 60004 bytes when it was opened",
                        folder / "a.bin"));
  std::filesystem::resize_file(folder / "a.bin", 0);
  EXPECT_THAT(message_of<DataError>([&] { read_all(dataset, 0); }), HasSubstr("become shorter"));
}

TEST(IndexedDataset, NamesTheTokenTypeThatATokenDoesNotFit) {
  const TempFolder folder;
  for (const auto& [type, name] : {std::pair{TokenType::kU8, "u8"},
                                   {TokenType::kI8, "i8"},
                                   {TokenType::kI16, "i16"},
                                   {TokenType::kI32, "i32"},
                                   {TokenType::kI64, "i64"},
                                   {TokenType::kU16, "u16"}}) {
    IndexedDatasetWriter writer(folder / "a", type);
    EXPECT_EQ(message_of<DataError>([&] { writer.add_sequence(std::vector<int32_t>{-1}); }),
              fmt::format("'{}.bin': token -1 does not fit the token type {}", folder / "a", name));
  }
}

TEST(IndexedDataset, AReadOutsideASequenceIsAFaultOfTheCaller) {
  const TempFolder folder;
  write_dataset(folder / "a", {{7, 8}});
  const IndexedDataset dataset(folder / "a");
  std::vector<int32_t> out(1);
  for (const auto& place : {std::pair{-1, 0}, {1, 0}, {0, -1}, {0, 2}}) {
    EXPECT_THAT(message_of<InternalError>([&] { dataset.read(place.first, place.second, out); }),
                HasSubstr(fmt::format("read of tokens [{}, {}) of sequence {} of", place.second,
                                      place.second + 1, place.first)));
  }
}

TEST(IndexedDataset, RefusesTokensOutsideTheVocabulary) {
  const TempFolder folder;
  write_dataset(folder / "a", {{1, 2}, {3, 90, 4}});
  const IndexedDataset dataset(folder / "a");
  std::vector<int32_t> out(3);
  dataset.read(1, 0, out, 91);
  EXPECT_THAT(message_of<DataError>([&] { dataset.read(1, 0, out, 90); }),
              AllOf(HasSubstr(folder / "a.bin"), HasSubstr("token 90"), HasSubstr("position 1"),
                    HasSubstr("sequence 1")));
  EXPECT_THROW(dataset.read(1, 1, out), InternalError);
  EXPECT_THROW(dataset.read(2, 0, {}), InternalError);
}

TEST(IndexedDataset, RefusesNegativeAndHugeStoredTokens) {
  const TempFolder folder;
  write_dataset(folder / "a", {{1}}, TokenType::kI64);
  for (const int64_t stored : {int64_t{-1}, int64_t{1} << 31, INT64_MIN}) {
    write_test_file(folder / "a.bin",
                    std::string_view(reinterpret_cast<const char*>(&stored), sizeof(stored)));
    std::vector<int32_t> out(1);
    EXPECT_THAT(message_of<DataError>([&] { IndexedDataset(folder / "a").read(0, 0, out); }),
                HasSubstr(std::to_string(stored)));
  }
}

TEST(ParseIndex, RefusesBadHeaders) {
  EXPECT_THAT(rejection("XX" + golden_idx().substr(2)), HasSubstr("not a Megatron .idx"));
  EXPECT_THAT(rejection(with<uint64_t>(golden_idx(), 9, 2)), HasSubstr("version 2"));
  EXPECT_THAT(rejection(with<uint8_t>(golden_idx(), 17, 6)), HasSubstr("f64"));
  EXPECT_THAT(rejection(with<uint8_t>(golden_idx(), 17, 7)), HasSubstr("f32"));
  EXPECT_THAT(rejection(with<uint8_t>(golden_idx(), 17, 0)), HasSubstr("type code 0"));
  EXPECT_THAT(rejection(with<uint8_t>(golden_idx(), 17, 9)), HasSubstr("type code 9"));
}

TEST(ParseIndex, RefusesCountsThatDoNotFitTheFile) {
  for (const uint64_t count : {uint64_t{1} << 61, UINT64_MAX, UINT64_MAX / 12 + 1, uint64_t{100}}) {
    EXPECT_THAT(rejection(with(golden_idx(), 18, count)), HasSubstr("do not fit"));
    EXPECT_THAT(rejection(with(golden_idx(), 26, count)), HasSubstr("do not fit"));
  }
  EXPECT_THAT(rejection(golden_idx() + "x"), HasSubstr("1 bytes follow"));
  EXPECT_THAT(rejection(with<uint64_t>(golden_idx().substr(0, 34 + 24), 26, 0)),
              HasSubstr("no document boundaries"));
}

TEST(ParseIndex, RefusesSequencesThatContradictEachOther) {
  EXPECT_THAT(rejection(with<int32_t>(golden_idx(), 34, -3)), HasSubstr("length -3"));
  EXPECT_THAT(rejection(with<int64_t>(golden_idx(), 50, 4)),
              HasSubstr("sequence 1 starts at byte 4"));
  EXPECT_THAT(rejection(with<int64_t>(golden_idx(), 42, -2)), HasSubstr("sequence 0"));
  EXPECT_THAT(rejection(with<int32_t>(golden_idx(), 38, INT32_MAX)), HasSubstr("too short"));
}

TEST(ParseIndex, RefusesBadDocumentBoundaries) {
  EXPECT_THAT(rejection(with<int64_t>(golden_idx(), 58, 1)), HasSubstr("not at 0"));
  EXPECT_THAT(rejection(with<int64_t>(golden_idx(), 66, -1)), HasSubstr("document 1"));
  EXPECT_THAT(rejection(with<int64_t>(golden_idx(), 66, 3)), HasSubstr("document 2"));
  EXPECT_THAT(rejection(with<int64_t>(golden_idx(), 74, 3)), HasSubstr("end at sequence 3"));
}

TEST(ParseIndex, RefusesEveryTruncation) {
  const std::string idx = golden_idx();
  for (size_t size = 0; size < idx.size(); ++size) {
    // An exact copy on the heap, so that a sanitizer sees the first byte read past the end.
    const std::vector<char> bytes(idx.begin(), idx.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(parse_index(std::as_bytes(std::span(bytes)), 10, "x.idx"), DataError) << size;
  }
}

TEST(ParseIndex, SurvivesEveryCorruptByte) {
  const std::string idx = golden_idx();
  int num_accepted = 0;
  for (size_t position = 0; position < idx.size(); ++position) {
    for (int value = 0; value < 256; ++value) {
      const std::string bytes = with(idx, position, static_cast<uint8_t>(value));
      try {
        const SequenceIndex index = parse(bytes, 10);
        EXPECT_EQ(index.num_tokens(), 5);
        ++num_accepted;
      } catch (const DataError&) {
      }
    }
  }
  // Accepted are: the 82 unchanged files; another type of the same size, i16 for u16; and an empty
  // first or second document, boundary 0 or 2 for the boundary 1.
  EXPECT_EQ(num_accepted, 82 + 1 + 2);
}

}  // namespace
}  // namespace braid
