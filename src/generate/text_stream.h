#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace braid {

/// Turns tokens into text as they arrive, up to the first of some stop texts. A token may end
/// inside a character, and a stop text inside a token: what may still change is held until the next
/// token. Invalid bytes, which an untrained model often samples, become U+FFFD, so that the text is
/// UTF-8.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream. Empty stop texts stop nothing.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops);

  /// The text that is certain after this token. Rows of the embedding beyond the tokenizer's ids
  /// (padding) have no text.
  std::string add(int32_t token);
  /// The rest, which ends the text.
  std::string finish();
  /// Whether a stop text came, which and whose successors are no part of the text.
  bool has_stopped() const { return has_stopped_; }

 private:
  std::string take_characters(bool is_end);
  std::string take_text(bool is_end);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::string bytes_;  // decoded, and not yet whole characters
  std::string text_;   // characters that may begin a stop text
  bool has_stopped_ = false;
};

}  // namespace braid
