#include "data/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The parts of a text; matches stand in brackets.
std::vector<std::string> parts(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern, "test");
  std::vector<std::string> result;
  Regex::Splitter(regex).split(text, [&](std::string_view part, bool is_match) {
    result.push_back(is_match ? "[" + std::string(part) + "]" : std::string(part));
  });
  return result;
}

TEST(Regex, SplitsIntoMatchesAndWhatLiesBetween) {
  EXPECT_THAT(parts("b+", "abbcb"), ElementsAre("a", "[bb]", "c", "[b]"));
  EXPECT_THAT(parts("x", "abc"), ElementsAre("abc"));
  EXPECT_THAT(parts("x", ""), ElementsAre());
  EXPECT_THAT(parts("b*|(?=c)", "a\xC3\xA9"), ElementsAre("a", "\xC3\xA9"));  // empty matches
  EXPECT_THAT(parts("^.$", "ab\nc\nd"), ElementsAre("ab\n", "[c]", "\n", "[d]"));
}

// Each differs in PCRE2 as it stands: U+180E is no white space, U+1C89 and U+31350 are letters of
// Unicode 16 and 15, U+3001 has Han among its scripts.
TEST(Regex, ClassesAreThoseOfRuby) {
  EXPECT_THAT(parts("\\s+", "a\xC2\x85\xE3\x80\x80 b\xE1\xA0\x8E"),
              ElementsAre("a", "[\xC2\x85\xE3\x80\x80 ]", "b\xE1\xA0\x8E"));
  EXPECT_THAT(parts("[^\\s\\p{L}]+", "\xE1\xB2\x89.\xF0\xB1\x8D\x90 "),
              ElementsAre("\xE1\xB2\x89", "[.]", "\xF0\xB1\x8D\x90 "));
  EXPECT_THAT(parts("\\P{L}", "\xE1\xB2\x89."), ElementsAre("\xE1\xB2\x89", "[.]"));
  EXPECT_THAT(parts("\\p{Han}", "\xE4\xB8\xAD\xE3\x80\x81"),
              ElementsAre("[\xE4\xB8\xAD]", "\xE3\x80\x81"));
  EXPECT_THAT(parts("\\d\\D\\S", "\xD9\xA3 x"), ElementsAre("[\xD9\xA3 x]"));
  EXPECT_THAT(parts("\\w+", "a_1\xCC\x81-"), ElementsAre("[a_1\xCC\x81]", "-"));
  EXPECT_THAT(parts("\\u00e9\\x41",
                    "\xC3\xA9"
                    "A"),
              ElementsAre("[\xC3\xA9"
                          "A]"));
}

TEST(Regex, RefusesWhatPcreWouldReadOtherwise) {
  for (const char* pattern :
       {"a{1,3}+", "a{,3}", "[a[b]]", "[a&&b]", "\\h", "\\R", "\\1", "(?m:a)", "(?<n>a)", "[]a]",
        "[\\P{L}]", "[\\W]", "(*UTF)a", "a\\b", "\\x80", "\\u12", "a\\", "\\pL"}) {
    EXPECT_THAT(message_of<DataError>([&] { Regex(pattern, "'t.json'"); }),
                AllOf(HasSubstr("'t.json': braid does not support \"")))
        << pattern;
  }
  EXPECT_THAT(message_of<DataError>([] { Regex("(a", "'t.json'"); }),
              HasSubstr("'t.json': \"(a\" is not a regular expression: missing closing paren"));
  EXPECT_THROW(Regex("\\p{Nonsense}", "t"), DataError);
}

TEST(Regex, AnEscapedTextMatchesItselfOnly) {
  const std::string text = "a.*[\\]\n\xC3\xA9 {1}";
  EXPECT_THAT(parts(escape_regex(text), "x" + text + "ab"),
              ElementsAre("x", "[" + text + "]", "ab"));
}

// More than machine code has stack for: the interpreter goes on.
TEST(Regex, LongMatchesEnd) {
  const std::string text(300'000, 'a');
  EXPECT_THAT(parts("(?:a|b)+b|a+", text), ElementsAre("[" + text + "]"));
}

}  // namespace
}  // namespace braid
