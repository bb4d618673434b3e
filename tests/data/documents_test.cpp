#include "data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DocumentsTest : public ::testing::Test {
 protected:
  std::vector<std::string> read(std::string_view content,
                                const DocumentOptions& options = DocumentOptions(),
                                const std::string& name = "a.jsonl") {
    write_test_file(folder_ / name, content);
    std::vector<std::string> texts;
    int64_t last_end_bytes = 0;
    for_each_document(folder_ / name, options, [&](const Document& document) {
      texts.emplace_back(document.text);
      EXPECT_GT(document.end_bytes, last_end_bytes);
      EXPECT_LE(document.end_bytes, document.file_bytes);
      EXPECT_EQ(document.file_bytes, static_cast<int64_t>(content.size()));
      last_end_bytes = document.end_bytes;
    });
    return texts;
  }
  std::string rejection(std::string_view content) {
    return message_of<DataError>([&] { read(content); });
  }

  TempFolder folder_;
};

TEST_F(DocumentsTest, ReadsJsonLines) {
  EXPECT_THAT(read("{\"text\": \"a\\nb \\u00e9\", \"id\": 3}\n\n  "
                   "\r\n{\"text\":\"\"}\r\n{\"text\":\"last\"}"),
              ElementsAre("a\nb \xC3\xA9", "", "last"));
  DocumentOptions options;
  options.json_key = "body";
  EXPECT_THAT(read("{\"body\": \"x\", \"text\": 1}", options), ElementsAre("x"));
}

TEST_F(DocumentsTest, ReadsTextFilesByTheirOptions) {
  DocumentOptions options;
  EXPECT_THAT(read("a\n\nb", options, "a.txt"), ElementsAre("a\n\nb"));
  options.text.document_break = DocumentBreak::kBlankLines;
  EXPECT_THAT(read("a\n\nb", options, "a"), ElementsAre("a", "b"));
}

TEST_F(DocumentsTest, NamesTheLineThatIsNoDocument) {
  const std::string path = folder_ / "a.jsonl";
  EXPECT_THAT(rejection("{\"text\":\"a\"}\n\n{\"text\":"),
              AllOf(HasSubstr(path), HasSubstr("line 3 is not JSON"), HasSubstr("unexpected end")));
  EXPECT_THAT(rejection("[1]"), HasSubstr("line 1 is a JSON array, not an object"));
  EXPECT_THAT(rejection("{\"txt\":\"a\"}"), HasSubstr("line 1 has no member \"text\""));
  EXPECT_THAT(rejection("{\"text\":[1]}"), HasSubstr("is a JSON array, not a string"));
  EXPECT_THAT(rejection("{\"text\":\"\\ud800\"}"), HasSubstr("line 1 is not JSON"));
  EXPECT_THAT(rejection("{\"text\":\"a\"}\n{\"text\":\"\xFF\"}"),
              AllOf(HasSubstr("not UTF-8"), HasSubstr("line 2")));
  EXPECT_THAT(rejection("{\"text\":\"a\"}\n" + std::string(100'000, '[')),
              HasSubstr("line 2 nests arrays and objects deeper than 256, the limit, at byte 257"));
  EXPECT_THAT(rejection(" \n"), HasSubstr("no documents"));
  EXPECT_THAT(rejection(""), HasSubstr("no documents"));
}

TEST_F(DocumentsTest, JsonLinesThatBecomeShorterAreAnError) {
  const std::string path = folder_ / "a.jsonl";
  std::string content;
  while (static_cast<int64_t>(content.size()) < 3 * SequentialReader::kPartBytes) {
    content += "{\"text\": \"some words\"}\n";
  }
  write_test_file(path, content);
  EXPECT_EQ(message_of<DataError>([&] {
              for_each_document(path, {}, [&](const Document& document) {
                if (document.end_bytes == 23) {
                  std::filesystem::resize_file(path, 100);
                }
              });
            }),
            fmt::format("'{}' has become shorter while it was in use: it ends at or before byte "
                        "{}, but had {} bytes when it was opened",
                        path, SequentialReader::kPartBytes, content.size()));
}

TEST_F(DocumentsTest, NamesAMissingFile) {
  EXPECT_THAT(message_of<DataError>(
                  [&] { for_each_document(folder_ / "x.jsonl", DocumentOptions(), nullptr); }),
              AllOf(HasSubstr("x.jsonl"), HasSubstr("No such file")));
}

}  // namespace
}  // namespace braid
