#include "generate/text_stream.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "data/utf8.h"

namespace braid {
namespace {

/// Bytes of the character that begins with this byte, according to this byte alone.
size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xC0u ? 1 : byte < 0xE0u ? 2 : byte < 0xF0u ? 3 : 4;
}

/// Whether more bytes could complete the character at the end of the text.
bool may_be_completed(std::string_view end) {
  return end.size() < character_bytes(end.front()) &&
         std::all_of(end.begin() + 1, end.end(),
                     [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; });
}

/// The length of the longest end of `text` that is a beginning of `stop`.
size_t begun_bytes(std::string_view text, std::string_view stop) {
  size_t length = std::min(text.size(), stop.size());
  while (length > 0 && !text.ends_with(stop.substr(0, length))) {
    --length;
  }
  return length;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string TextStream::add(int32_t token) {
  if (has_stopped_ || token >= tokenizer_.vocabulary_size()) {
    return "";
  }
  bytes_ += tokenizer_.decode(std::span(&token, 1));
  text_ += take_characters(false);
  return take_text(false);
}

std::string TextStream::finish() {
  if (has_stopped_) {
    return "";
  }
  text_ += take_characters(true);
  return take_text(true);
}

std::string TextStream::take_characters(bool is_end) {
  std::string text;
  while (const std::optional<size_t> bad = find_invalid_utf8(bytes_)) {
    text += bytes_.substr(0, *bad);
    bytes_.erase(0, *bad);
    if (!is_end && may_be_completed(bytes_)) {
      return text;
    }
    text += "\xEF\xBF\xBD";
    bytes_.erase(0, 1);
  }
  return text + std::exchange(bytes_, {});
}

std::string TextStream::take_text(bool is_end) {
  size_t end = std::string::npos;
  size_t held = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, text_.find(stop));
    held = std::max(held, begun_bytes(text_, stop));
  }
  has_stopped_ = end != std::string::npos;
  const size_t certain = has_stopped_ ? end : text_.size() - (is_end ? 0 : held);
  std::string taken = text_.substr(0, certain);
  text_.erase(0, has_stopped_ ? text_.size() : certain);
  return taken;
}

}  // namespace braid
