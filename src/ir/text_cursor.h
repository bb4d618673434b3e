#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

/// A plain or quoted word of program text. A quoted word is never a keyword.
struct Word {
  std::string text;
  bool is_quoted = false;

  bool is_keyword(std::string_view keyword) const { return !is_quoted && text == keyword; }
};

/// Reads program text from left to right, one line at a time, and skips blanks between tokens.
/// Every failure is a DataError "program text, LINE:COLUMN: expected ..., found ..."; columns count
/// bytes from 1.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  /// Moves to the next line that is not blank or a comment. Returns false at the end of the text.
  bool next_statement();
  /// True if only blanks remain in the line.
  bool at_line_end();
  void expect_line_end();

  /// Consumes `token` if it comes next.
  bool accept(std::string_view token);
  void expect(std::string_view token);

  /// True if a plain or quoted word comes next.
  bool at_word();
  bool at_quoted_word();
  Word word(std::string_view expectation);

  /// True if the plain word `keyword` comes next. `accept_keyword` also consumes it.
  bool at_keyword(std::string_view keyword);
  bool accept_keyword(std::string_view keyword);
  /// As accept_keyword, for `key` followed by "=".
  bool accept_key(std::string_view key);
  void expect_key(std::string_view key);

  int64_t integer(std::string_view expectation, int64_t min = INT64_MIN, int64_t max = INT64_MAX);
  /// Consumes all text up to the next character that cannot be part of a number or plain word.
  std::string_view number_text();

  /// Byte offset of the next token, for `fail_at`.
  size_t position();
  /// Returns to an earlier `position`.
  void rewind(size_t position) { position_ = position; }
  [[noreturn]] void fail(std::string_view expectation);
  [[noreturn]] void fail_at(size_t position, std::string_view expectation) const;

 private:
  char peek() const { return position_ < text_.size() ? text_[position_] : '\n'; }
  void skip_blanks();
  std::string quoted_text();
  void append_escaped(std::string& text);
  uint32_t hex_digits(int count);
  std::string_view plain_text() const;

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace braid
