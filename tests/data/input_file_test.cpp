#include "data/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "data/compressed_text.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool reads(Compression compression) {
  const std::string missing = std::string(compression_name(compression)) + " missing";
  return describe_decompressors().find(missing) == std::string::npos;
}

class InputFileTest : public ::testing::Test {
 protected:
  std::string read(const std::string& content) const {
    write_test_file(path_, content);
    InputFile file(path_);
    std::string text;
    for (auto bytes = file.next(0); !bytes.empty(); bytes = file.next(0)) {
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    EXPECT_TRUE(file.next(0).empty());
    EXPECT_EQ(file.read_bytes(), file.size_bytes());
    EXPECT_EQ(file.size_bytes(), static_cast<int64_t>(content.size()));
    return text;
  }

  TempFolder folder_;
  std::string path_ = folder_ / "any name";
};

TEST_F(InputFileTest, ReadsPlainFiles) {
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("\x1F"), "\x1F");
  const std::string large(3 * SequentialReader::kPartBytes + 1, 'x');
  EXPECT_TRUE(read(large) == large);
}

class CompressedFileTest : public InputFileTest, public ::testing::WithParamInterface<Compression> {
 protected:
  void SetUp() override {
    if (!reads(GetParam())) {
      EXPECT_THAT(refusal(lines()), HasSubstr("which this build of braid does not read: apt-get "));
      GTEST_SKIP() << compression_name(GetParam()) << " is not in this build";
    }
  }
  const std::string& lines() const {
    return GetParam() == Compression::kGzip ? kTwoJsonLinesGzip : kTwoJsonLinesZstd;
  }
  std::string refusal(const std::string& content) {
    return message_of<DataError>([&] { read(content); });
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, CompressedFileTest,
                         ::testing::Values(Compression::kGzip, Compression::kZstd));

TEST_P(CompressedFileTest, ReadsStreamsOneAfterTheOther) {
  EXPECT_EQ(read(lines()), kTwoJsonLines);
  EXPECT_EQ(read(lines() + lines()), kTwoJsonLines + kTwoJsonLines);
}

TEST_P(CompressedFileTest, RefusesAFileThatEndsInsideAStream) {
  for (size_t size = 4; size < lines().size(); ++size) {
    EXPECT_THAT(refusal(lines().substr(0, size)),
                AllOf(HasSubstr(path_ + "' after line 0: "), HasSubstr("the file is truncated")))
        << size;
  }
}

TEST_P(CompressedFileTest, RefusesDamagedBytes) {
  EXPECT_THAT(refusal(lines() + "no stream"), HasSubstr("data are damaged ("));
  if (GetParam() == Compression::kGzip) {
    std::string flipped = lines();
    flipped[20] ^= 1;
    EXPECT_THAT(refusal(flipped), HasSubstr("its gzip data are damaged ("));
  }
}

TEST_F(InputFileTest, NamesFormatsThatAreNotRead) {
  const auto refusal = [&](const std::string& content) {
    return message_of<DataError>([&] { read(content); });
  };
  EXPECT_THAT(refusal("PAR1\x15 more"), HasSubstr("is a Parquet file under another name"));
  EXPECT_THAT(refusal("BZh91AY&SY more"), HasSubstr("compressed with bzip2"));
  EXPECT_THAT(refusal("PK\x03\x04 more"), HasSubstr("unzip"));
  EXPECT_EQ(read("PAR1 is a word"), "PAR1 is a word");
}

TEST(UncompressedName, LosesOneExtension) {
  EXPECT_EQ(uncompressed_name("a/b.jsonl.gz"), "a/b.jsonl");
  EXPECT_EQ(uncompressed_name("b.txt.zst"), "b.txt");
  EXPECT_EQ(uncompressed_name("b.zstd"), "b");
  EXPECT_EQ(uncompressed_name("b.gzip"), "b.gzip");
}

}  // namespace
}  // namespace braid
