#include "generate/text_stream.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

/// What a stream gives after each byte of `bytes`, joined with "|", and at the end.
std::string stream(const std::string& bytes, const std::vector<std::string>& stops = {}) {
  const auto tokenizer = load_tokenizer("bytes");
  TextStream text(*tokenizer, stops);
  std::string out;
  for (const char byte : bytes) {
    out += text.add(static_cast<unsigned char>(byte)) + "|";
  }
  return out + text.finish() + (text.has_stopped() ? " stopped" : "");
}

TEST(TextStream, HoldsACharacterUntilItIsWhole) {
  EXPECT_EQ(stream("a\xC3\xA4z"), "a||\xC3\xA4|z|");
  EXPECT_EQ(stream("a\xC3"), "a||\xEF\xBF\xBD");
  EXPECT_EQ(stream("\xC3z"), "|\xEF\xBF\xBDz|");
}

TEST(TextStream, HoldsWhatMayBeginAStopText) {
  EXPECT_EQ(stream("ab\n\ncd", {"\n\n"}), "a|b||||| stopped");
  EXPECT_EQ(stream("ab\nc", {"\n\n"}), "a|b||\nc|");
  EXPECT_EQ(stream("ab\n", {"\n\n"}), "a|b||\n");
}

TEST(TextStream, StopsAtTheFirstOfItsStopTexts) {
  EXPECT_EQ(stream("xaab!", {"ab", "b!"}), "x||a||| stopped");
  EXPECT_EQ(stream("abc", {"", "zz"}), "a|b|c|");
  EXPECT_EQ(stream("z\xC3\xA4", {"\xC3\xA4"}), "z||| stopped");
}

TEST(TextStream, GivesNoTextForIdsThatTheTokenizerLacks) {
  const auto tokenizer = load_tokenizer("bytes");
  TextStream text(*tokenizer, {});
  EXPECT_EQ(text.add(300), "");
}

}  // namespace
}  // namespace braid
