#include "data/text_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
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
    const TextCorpus corpus(path_, options);
    return {corpus.documents().begin(), corpus.documents().end()};
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
  const TextCorpus corpus(path_, kByMarker);
  EXPECT_EQ(corpus.size_bytes(), 13);
  ASSERT_EQ(corpus.documents().size(), 2u);
  EXPECT_EQ(corpus.end_bytes(corpus.documents()[0]), 7);
  EXPECT_EQ(corpus.end_bytes(corpus.documents()[1]), 12);
}

TEST_F(TextCorpusTest, RefusesFilesWithoutText) {
  EXPECT_THAT(message_of<DataError>([&] { documents(""); }),
              AllOf(HasSubstr(path_), HasSubstr("empty")));
  EXPECT_THAT(message_of<DataError>([&] { documents(" \n\t\r\n"); }), HasSubstr("all blanks"));
  EXPECT_THAT(message_of<DataError>([&] { documents("%\n%\n", kByMarker); }),
              AllOf(HasSubstr(path_), HasSubstr("no documents")));
  EXPECT_THAT(message_of<DataError>([&] { TextCorpus corpus(folder_ / "none.txt"); }),
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
