#include "generate/prompt_file.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class PromptFile : public ::testing::Test {
 protected:
  std::vector<PromptLine> read(const std::string& name, std::string_view text) {
    write_file_atomically(folder_ / name, text);
    return read_prompts(folder_ / name);
  }
  std::string refusal(std::string_view text) {
    return message_of<DataError>([&] { read("a.jsonl", text); });
  }
  TempFolder folder_;
};

TEST_F(PromptFile, OfTextHasAPromptPerLine) {
  const auto prompts = read("a.txt", "one\r\n\n {\"prompt\": 1}\n");
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].prompt, "one");
  EXPECT_EQ(prompts[1].prompt, " {\"prompt\": 1}");
  EXPECT_EQ(prompts[1].line, 3);
  EXPECT_EQ(prompts[1].seed, std::nullopt);
}

TEST_F(PromptFile, OfJsonHasAnObjectPerLine) {
  const auto prompts =
      read("a.jsonl", "{\"prompt\": \"a\\nb\", \"x\": 1}\n{\"prompt\": \"\", \"seed\": 7}");
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].prompt, "a\nb");
  EXPECT_EQ(prompts[0].seed, std::nullopt);
  EXPECT_EQ(prompts[1].seed, 7u);
}

TEST_F(PromptFile, NamesLineAndMemberOfAMistake) {
  EXPECT_THAT(refusal("{\"prompt\": \"a\"}\n[1]\n"), HasSubstr("a.jsonl' line 2 is a JSON array"));
  EXPECT_THAT(refusal("{\"text\": \"a\"}\n"), HasSubstr("line 1 has no member \"prompt\""));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"seed\": -1}\n"),
              HasSubstr("member \"seed\" = -1 is not"));
  EXPECT_THAT(refusal("\n \n"), HasSubstr("has no prompts"));
}

}  // namespace
}  // namespace braid
