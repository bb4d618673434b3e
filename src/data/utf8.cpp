#include "data/utf8.h"

#include <cstdint>
#include <cstring>

namespace braid {
namespace {

bool in_range(uint8_t byte, uint8_t low, uint8_t high) {
  return byte >= low && byte <= high;
}

/// Bytes of the well-formed character at the front of a non-empty text, 0 if there is none.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const auto continues = [&](size_t i) { return in_range(byte(i), 0x80, 0xBF); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  if (in_range(lead, 0xC2, 0xDF)) {
    return continues(1) ? 2 : 0;
  }
  // The first continuation byte has a smaller range after some lead bytes: overlong forms,
  // surrogates, the upper end.
  if (in_range(lead, 0xE0, 0xEF)) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : 0xBF;
    return in_range(byte(1), low, high) && continues(2) ? 3 : 0;
  }
  if (in_range(lead, 0xF0, 0xF4)) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xF4 ? 0x8F : 0xBF;
    return in_range(byte(1), low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

/// Length of the run of 8-byte blocks of ASCII at the front; most text is ASCII.
size_t ascii_blocks(std::string_view text) {
  size_t size = 0;
  for (; size + 8 <= text.size(); size += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + size, 8);
    if ((word & 0x8080808080808080u) != 0) {
      break;
    }
  }
  return size;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const std::string_view rest = text.substr(position);
    const size_t ascii = ascii_blocks(rest);
    const size_t step = ascii > 0 ? ascii : character_bytes(rest);
    if (step == 0) {
      return position;
    }
    position += step;
  }
  return std::nullopt;
}

}  // namespace braid
