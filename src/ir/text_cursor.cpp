#include "ir/text_cursor.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"
#include "base/text.h"
#include "ir/text.h"

namespace braid {
namespace {

/// A code point below 0x10000.
void append_utf8(uint32_t code, std::string& text) {
  const auto tail = [](uint32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    text += tail(code);
  } else {
    text += static_cast<char>(0xE0 | code >> 12);
    text += tail(code >> 6);
    text += tail(code);
  }
}

constexpr size_t kMaxShownBytes = 40;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_word_start(char c) {
  return is_word_character(c) && !is_digit(c) && c != '.' && c != '/' && c != '-';
}

}  // namespace

bool TextCursor::next_statement() {
  while (position_ < text_.size()) {
    skip_blanks();
    if (peek() != '\n' && peek() != '#') {
      return true;
    }
    position_ = std::min(text_.find('\n', position_), text_.size() - 1) + 1;
  }
  return false;
}

bool TextCursor::at_line_end() {
  skip_blanks();
  return peek() == '\n';
}

void TextCursor::expect_line_end() {
  if (!at_line_end()) {
    fail("the end of the line");
  }
}

bool TextCursor::accept(std::string_view token) {
  skip_blanks();
  if (!text_.substr(position_).starts_with(token)) {
    return false;
  }
  position_ += token.size();
  return true;
}

void TextCursor::expect(std::string_view token) {
  if (!accept(token)) {
    fail(quote(token));
  }
}

bool TextCursor::at_word() {
  skip_blanks();
  return peek() == '"' || is_word_start(peek());
}

bool TextCursor::at_quoted_word() {
  skip_blanks();
  return peek() == '"';
}

bool TextCursor::at_keyword(std::string_view keyword) {
  skip_blanks();
  return is_word_start(peek()) && plain_text() == keyword;
}

Word TextCursor::word(std::string_view expectation) {
  if (!at_word()) {
    fail(expectation);
  }
  if (peek() == '"') {
    return {quoted_text(), true};
  }
  const std::string_view text = plain_text();
  position_ += text.size();
  return {std::string(text), false};
}

bool TextCursor::accept_keyword(std::string_view keyword) {
  const bool found = at_keyword(keyword);
  position_ += found ? keyword.size() : 0;
  return found;
}

bool TextCursor::accept_key(std::string_view key) {
  if (!accept_keyword(key)) {
    return false;
  }
  expect("=");
  return true;
}

void TextCursor::expect_key(std::string_view key) {
  if (!accept_key(key)) {
    fail(fmt::format("\"{}=\"", key));
  }
}

int64_t TextCursor::integer(std::string_view expectation, int64_t min, int64_t max) {
  skip_blanks();
  int64_t value = 0;
  const char* begin = text_.data() + position_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error == std::errc::invalid_argument) {
    fail(expectation);
  }
  if (error != std::errc() || value < min || value > max) {
    fail(fmt::format("{} in [{}, {}]", expectation, min, max));
  }
  position_ += static_cast<size_t>(end - begin);
  return value;
}

std::string_view TextCursor::number_text() {
  skip_blanks();
  const size_t begin = position_;
  while (is_word_character(peek()) || peek() == '+') {
    ++position_;
  }
  return text_.substr(begin, position_ - begin);
}

size_t TextCursor::position() {
  skip_blanks();
  return position_;
}

void TextCursor::fail(std::string_view expectation) {
  skip_blanks();
  fail_at(position_, expectation);
}

void TextCursor::fail_at(size_t position, std::string_view expectation) const {
  const std::string_view before = text_.substr(0, position);
  const auto line = std::ranges::count(before, '\n') + 1;
  const size_t line_begin = before.find_last_of('\n') + 1;  // npos + 1 is 0
  const std::string_view rest = text_.substr(position, text_.find('\n', position) - position);
  const auto* const word_end = std::ranges::find_if_not(rest, is_word_character);
  const auto word_size = static_cast<size_t>(word_end - rest.begin());
  const std::string found =
      trim(rest).empty() ? "the end of the line"
                         : quote(rest.substr(0, std::max<size_t>(word_size, 1)), kMaxShownBytes);
  throw_data_error("program text, {}:{}: expected {}, found {}", line, position - line_begin + 1,
                   expectation, found);
}

void TextCursor::skip_blanks() {
  while (peek() == ' ' || peek() == '\t' || peek() == '\r') {
    ++position_;
  }
}

std::string TextCursor::quoted_text() {
  std::string text;
  ++position_;
  while (peek() != '"') {
    if (peek() == '\n') {
      fail("a closing '\"'");
    }
    if (peek() == '\\') {
      append_escaped(text);
    } else {
      text += text_[position_++];
    }
  }
  ++position_;
  return text;
}

void TextCursor::append_escaped(std::string& text) {
  const size_t begin = position_++;
  const char kind = peek();
  if (kind != '"' && kind != '\\' && kind != 'x' && kind != 'u') {
    fail_at(begin, R"(one of the escapes \" \\ \xHH \uHHHH)");
  }
  ++position_;
  if (kind == '"' || kind == '\\') {
    text += kind;
    return;
  }
  const uint32_t code = hex_digits(kind == 'x' ? 2 : 4);
  if (kind == 'x') {
    text += static_cast<char>(code);
    return;
  }
  if (code >= 0xD800 && code < 0xE000) {  // halves of characters in UTF-16
    fail_at(begin, R"(an escape of a character, \u0000 to \uD7FF or \uE000 to \uFFFF)");
  }
  append_utf8(code, text);
}

uint32_t TextCursor::hex_digits(int count) {
  const std::string_view digits = text_.substr(position_, static_cast<size_t>(count));
  uint32_t code = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      digits.size() != static_cast<size_t>(count)) {
    fail_at(position_, fmt::format("{} hexadecimal digits", count));
  }
  position_ += digits.size();
  return code;
}

std::string_view TextCursor::plain_text() const {
  const std::string_view rest = text_.substr(position_);
  auto size = static_cast<size_t>(std::ranges::find_if_not(rest, is_word_character) - rest.begin());
  // "x->y" parses as x, an arrow, and y.
  while (size > 0 && rest[size - 1] == '-') {
    --size;
  }
  return rest.substr(0, size);
}

}  // namespace braid
