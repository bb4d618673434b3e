#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// A token that is found in a text as it stands, before anything else looks at the text; an entry
/// of "added_tokens" in a tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool is_special = false;     ///< has no text when ids are decoded
  bool is_normalized = false;  ///< is looked for after the text was normalized
  bool strips_left = false;    ///< takes the white space before it
  bool strips_right = false;   ///< and after it
};

/// Finds added tokens in texts: the leftmost, of these the longest, as Hugging Face's library does.
/// Immutable, thread-safe.
class AddedTokenFinder {
 public:
  /// The contents must differ. Empty ones are never found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// A token, or the text between two of them.
  struct Part {
    std::string_view text;
    std::optional<int32_t> id;
  };
  /// Calls `visit` with all parts of a text, in order; no text between tokens is empty.
  void split(std::string_view text, const std::function<void(const Part&)>& visit) const;

 private:
  /// The longest token with which the text begins; null if there is none.
  const AddedToken* token_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;        // by content
  std::array<bool, 256> begins_token_{};  // by first byte
};

}  // namespace braid
