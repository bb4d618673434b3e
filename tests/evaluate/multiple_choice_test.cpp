#include "evaluate/multiple_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReadChoices : public ::testing::Test {
 protected:
  std::vector<ChoiceItem> read(const std::string& text, int64_t limit = 0) const {
    write_test_file(folder_ / "c.jsonl", text);
    return read_choices(folder_ / "c.jsonl", limit);
  }
  std::string refusal(const std::string& text) const {
    return message_of<DataError>([&] { read(text); });
  }

  TempFolder folder_;
};

TEST_F(ReadChoices, ReadsHellaSwagsMembers) {
  const std::string text =
      "{\"ind\": 4, \"ctx\": \"A man\", \"endings\": [\"sits.\", \"is.\"], \"label\": 1}\n\n"
      "{\"ctx\": \"B\", \"endings\": [\"a\", \"b\", \"c\"], \"label\": \"2\"}\n";
  const std::vector<ChoiceItem> items = read(text);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].context, "A man");
  EXPECT_THAT(items[0].endings, ElementsAre("sits.", "is."));
  EXPECT_EQ(items[0].label, 1);
  EXPECT_EQ(items[1].label, 2);
  EXPECT_EQ(items[1].line, 3);
  EXPECT_EQ(read(text, 1).size(), 1u);
}

TEST_F(ReadChoices, NamesLineAndMember) {
  const std::string good = "{\"ctx\":\"\",\"endings\":[\"a\",\"b\"],\"label\":0}\n";
  EXPECT_THAT(refusal(good + "{\"ctx\":\"\"}"),
              AllOf(HasSubstr("c.jsonl' line 2"), HasSubstr("no member \"endings\"")));
  EXPECT_THAT(refusal("{\"ctx\":3,\"endings\":[\"a\",\"b\"],\"label\":0}"),
              HasSubstr("member \"ctx\" is a JSON number, not a string"));
  EXPECT_THAT(refusal("{\"ctx\":\"\",\"endings\":[\"a\"],\"label\":0}"), HasSubstr("two or more"));
  for (const char* label : {"2", "-1", "\"x\"", "\"\"", "0.5", "null"}) {
    EXPECT_THAT(
        refusal("{\"ctx\":\"\",\"endings\":[\"a\",\"b\"],\"label\":" + std::string(label) + "}"),
        HasSubstr("it must be 0 to 1"))
        << label;
  }
  EXPECT_THAT(refusal("[]"), HasSubstr("is a JSON array, not an object"));
  EXPECT_THAT(refusal("\n"), HasSubstr("no items"));
}

/// Sum, characters and tokens each prefer another ending.
ChoiceScore score_of(int64_t label) {
  return {.label = label,
          .endings = {{.logprob = -4, .tokens = 1},
                      {.logprob = -6, .tokens = 4},
                      {.logprob = -5, .tokens = 2}},
          .characters = {4, 8, 10}};
}

TEST(AccuracyOf, ComparesEndingsAsAsked) {
  const auto right = [](int64_t label, ChoiceNorm norm) {
    return accuracy_of(std::vector{score_of(label)}, norm).value;
  };
  EXPECT_EQ(right(0, ChoiceNorm::kSum), 1.0);
  EXPECT_EQ(right(2, ChoiceNorm::kCharacters), 1.0);
  EXPECT_EQ(right(1, ChoiceNorm::kTokens), 1.0);
  EXPECT_EQ(right(1, ChoiceNorm::kSum), 0.0);
}

TEST(AccuracyOf, HasTheStandardErrorOfASample) {
  const Accuracy accuracy = accuracy_of(
      std::vector{score_of(0), score_of(0), score_of(0), score_of(1)}, ChoiceNorm::kSum);
  EXPECT_EQ(accuracy.value, 0.75);
  EXPECT_NEAR(accuracy.standard_error, std::sqrt(0.75 * 0.25 / 3), 1e-15);
}

}  // namespace
}  // namespace braid
