#include "data/text_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TextLinesTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines(std::string_view text) {
    write_test_file(path_, text);
    TextLines lines(path_);
    std::vector<std::string> found;
    while (const auto line = lines.next()) {
      found.emplace_back(*line);
      EXPECT_EQ(lines.number(), static_cast<int64_t>(found.size()));
    }
    EXPECT_EQ(lines.end_bytes(), static_cast<int64_t>(text.size()));
    EXPECT_EQ(lines.size_bytes(), static_cast<int64_t>(text.size()));
    return found;
  }

  TempFolder folder_;
  std::string path_ = folder_ / "a";
};

TEST_F(TextLinesTest, KeepsLineEnds) {
  EXPECT_THAT(lines("a\n\nb\r\n c"), ElementsAre("a\n", "\n", "b\r\n", " c"));
  EXPECT_THAT(lines("a\n"), ElementsAre("a\n"));
  EXPECT_THAT(lines(""), ElementsAre());
}

TEST_F(TextLinesTest, AByteOrderMarkBelongsToNoLine) {
  EXPECT_THAT(lines("\xEF\xBB\xBFx\n\xEF\xBB\xBFy"), ElementsAre("x\n", "\xEF\xBB\xBFy"));
  EXPECT_THAT(lines("\xEF\xBB\xBF"), ElementsAre(""));
}

TEST_F(TextLinesTest, JoinsLinesOverTheEndsOfParts) {
  const auto part = static_cast<size_t>(SequentialReader::kPartBytes);
  for (const size_t size : {part - 2, part - 1, part, part + 1, 2 * part + 3}) {
    const std::string first = std::string(size, 'x') + "\xC3\xA9\n";  // é may lie on the boundary
    EXPECT_TRUE(lines(first + "y\n" + first) == (std::vector<std::string>{first, "y\n", first}))
        << size;
  }
}

TEST_F(TextLinesTest, NamesTheFirstByteThatIsNotUtf8) {
  EXPECT_EQ(message_of<DataError>([&] { lines("ab\ncd\xE9 f\n"); }),
            fmt::format("'{}' is not UTF-8 text: byte 0xE9 at position 5, line 2", path_));
  EXPECT_THAT(message_of<DataError>([&] { lines("a\xC3\n\xA9"); }),
              AllOf(HasSubstr("0xC3"), HasSubstr("position 1, line 1")));
}

}  // namespace
}  // namespace braid
