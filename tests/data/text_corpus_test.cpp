#include "data/text_corpus.h"

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

class TextCorpusTest : public ::testing::Test {
 protected:
  std::vector<std::string> documents(std::string_view text, const TextCorpusOptions& options = {}) {
    write_test_file(path_, text);
    std::vector<std::string> found;
    for_each_text(path_, options,
                  [&](const Document& document) { found.emplace_back(document.text); });
    return found;
  }

  TempFolder folder_;
  std::string path_ = folder_ / "a.txt";
};

const TextCorpusOptions kByBlankLines = {.document_break = DocumentBreak::kBlankLines,
                                         .marker = {}};
const TextCorpusOptions kByMarker = {.document_break = DocumentBreak::kMarkerLine, .marker = "%"};

TEST_F(TextCorpusTest, TakesAWholeFileAsItIs) {
  EXPECT_THAT(documents("  a\n\nb\n"), ElementsAre("  a\n\nb\n"));
  EXPECT_THAT(documents("\xEF\xBB\xBFx"), ElementsAre("x"));
}

TEST_F(TextCorpusTest, BreaksAtBlankLines) {
  EXPECT_THAT(documents("\n\n  a\nb\n \t\n\nc\n\n\n", kByBlankLines), ElementsAre("  a\nb", "c"));
  EXPECT_THAT(documents("a\r\nb\r\n\r\nc", kByBlankLines), ElementsAre("a\r\nb", "c"));
}

TEST_F(TextCorpusTest, BreaksAtMarkerLinesOnly) {
  EXPECT_THAT(documents("%\na\n%\n%\nb %\n\n %\nc\n%\r\nd\n%", kByMarker),
              ElementsAre("a", "b %\n\n %\nc", "d"));
}

TEST_F(TextCorpusTest, KnowsWhereDocumentsEnd) {
  write_test_file(path_, "\xEF\xBB\xBF%\nab\n%\ncd\n");
  std::vector<int64_t> ends;
  for_each_text(path_, kByMarker, [&](const Document& document) {
    EXPECT_EQ(document.file_bytes, 13);
    ends.push_back(document.end_bytes);
  });
  EXPECT_THAT(ends, ElementsAre(7, 12));
}

TEST_F(TextCorpusTest, EndsDocumentsOfTheGivenSizeAfterALine) {
  EXPECT_THAT(documents("ab\ncd\nef\n\ng", {.max_document_bytes = 4}),
              ElementsAre("ab\ncd\n", "ef\n\n", "g"));
}

TEST_F(TextCorpusTest, AFileThatBecomesShorterIsAnError) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < 3 * SequentialReader::kPartBytes) {
    text += "a line\n\n";
  }
  write_test_file(path_, text);
  int64_t visited = 0;
  EXPECT_EQ(message_of<DataError>([&] {
              for_each_text(path_, kByBlankLines, [&](const Document&) {
                if (++visited == 1) {
                  std::filesystem::resize_file(path_, SequentialReader::kPartBytes + 1);
                }
              });
            }),
            fmt::format("'{}' has become shorter while it was in use: it ends at or before byte "
                        "{}, but had {} bytes when it was opened",
                        path_, SequentialReader::kPartBytes + 1, text.size()));
  EXPECT_GT(visited, 1000);
}

TEST_F(TextCorpusTest, RefusesFilesWithoutText) {
  EXPECT_THAT(message_of<DataError>([&] { documents(""); }),
              AllOf(HasSubstr(path_), HasSubstr("empty")));
  EXPECT_THAT(message_of<DataError>([&] { documents(" \n\t\r\n"); }), HasSubstr("all blanks"));
  EXPECT_THAT(message_of<DataError>([&] { documents("%\n%\n", kByMarker); }),
              AllOf(HasSubstr(path_), HasSubstr("no documents")));
  EXPECT_THAT(message_of<DataError>([&] { for_each_text(folder_ / "none.txt", {}, nullptr); }),
              AllOf(HasSubstr("none.txt"), HasSubstr("No such file")));
}

TEST_F(TextCorpusTest, NamesTheFirstByteThatIsNotUtf8) {
  EXPECT_THAT(
      message_of<DataError>([&] { documents("ab\ncd\xE9 f\n"); }),
      AllOf(HasSubstr(path_), HasSubstr("0xE9"), HasSubstr("position 5"), HasSubstr("line 2")));
}

TEST_F(TextCorpusTest, RefusesAnEmptyMarker) {
  EXPECT_THROW(documents("a", {.document_break = DocumentBreak::kMarkerLine, .marker = ""}),
               InternalError);
}

}  // namespace
}  // namespace braid
