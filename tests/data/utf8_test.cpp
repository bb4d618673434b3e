#include "data/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace braid {
namespace {

std::string encode_utf8(uint32_t code) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  const auto tail = [&](int shift, uint32_t c) { return byte(0x80 | ((c >> shift) & 0x3F)); };
  if (code < 0x80) {
    return {byte(code)};
  }
  if (code < 0x800) {
    return {byte(0xC0 | (code >> 6)), tail(0, code)};
  }
  if (code < 0x10000) {
    return {byte(0xE0 | (code >> 12)), tail(6, code), tail(0, code)};
  }
  return {byte(0xF0 | (code >> 18)), tail(12, code), tail(6, code), tail(0, code)};
}

TEST(Utf8, AcceptsEveryScalarValueAndNothingElse) {
  for (uint32_t code = 0; code < 0x120000; ++code) {
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    const bool is_valid = code <= 0x10FFFF && !is_surrogate;
    ASSERT_EQ(!find_invalid_utf8(encode_utf8(code)).has_value(), is_valid) << code;
  }
}

TEST(Utf8, RefusesEveryTruncatedCharacter) {
  for (const uint32_t code : {0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    const std::string whole = encode_utf8(code);
    for (size_t size = 1; size < whole.size(); ++size) {
      EXPECT_EQ(find_invalid_utf8(whole.substr(0, size)), 0u) << code;
      EXPECT_EQ(find_invalid_utf8(whole.substr(0, size) + "abc"), 0u) << code;
    }
  }
}

TEST(Utf8, RefusesOverlongFormsAndStrayBytes) {
  for (const char* text : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\x80",
                           "\xBF", "\xF5\x80\x80\x80", "\xFE", "\xFF"}) {
    EXPECT_EQ(find_invalid_utf8(text), 0u) << text;
  }
}

TEST(Utf8, NamesThePositionInLongTexts) {
  for (size_t position = 0; position < 40; ++position) {
    std::string text(40, 'x');
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
    text[position] = '\xFF';
    EXPECT_EQ(find_invalid_utf8(text), position);
    EXPECT_EQ(find_invalid_utf8("\xC3\xA9" + text), position + 2);
  }
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8(std::string_view("\0\0", 2)), std::nullopt);
}

TEST(Utf8, AppendsAndTakesEveryScalarValue) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    std::string text;
    append_utf8(text, code);
    ASSERT_EQ(text, encode_utf8(code));
    std::string_view rest = text;
    if (code < 0xD800 || code > 0xDFFF) {
      ASSERT_EQ(take_code_point(rest), code);
      ASSERT_TRUE(rest.empty());
    }
  }
}

// Python's bytes.decode("utf-8", "replace"), with ? for U+FFFD.
TEST(Utf8, ReplacesAsPythonDoes) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\xFF", "a?"},
      {"\xE2\x82", "?"},
      {"\xE2\x82x", "?x"},
      {"\xF0\x9F\x98", "?"},
      {"\xF0\x9F\x98\xF0\x9F", "??"},
      {"\xED\xA0\x80", "???"},
      {"\xC0\xAF", "??"},
      {"\xE0\x80\x80", "???"},
      {"\xF4\x90\x80\x80", "????"},
      {"\xC3\xA9\x80", "\xC3\xA9?"},
      {"", ""},
  };
  for (const auto& [text, expected] : cases) {
    std::string replaced = replace_invalid_utf8(text);
    for (size_t at = 0; (at = replaced.find("\xEF\xBF\xBD")) != std::string::npos;) {
      replaced.replace(at, 3, "?");
    }
    EXPECT_EQ(replaced, expected);
  }
}

}  // namespace
}  // namespace braid
