#include "data/utf8.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"

namespace braid {
namespace {

bool in_range(uint8_t byte, uint8_t low, uint8_t high) {
  return byte >= low && byte <= high;
}

/// What a first byte promises: the bytes of its character, and the range of the second one, which
/// is smaller after some: overlong forms, surrogates, the upper end.
struct Lead {
  size_t num_bytes = 0;  // 0: no character begins with it
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) {
    return {.num_bytes = 1};
  }
  if (in_range(byte, 0xC2, 0xDF)) {
    return {.num_bytes = 2};
  }
  if (in_range(byte, 0xE0, 0xEF)) {
    return {.num_bytes = 3,
            .low = static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            .high = static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (in_range(byte, 0xF0, 0xF4)) {
    return {.num_bytes = 4,
            .low = static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            .high = static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {};
}

/// Bytes at the front of a non-empty text that begin a character: all of it, or fewer.
size_t begun_bytes(std::string_view text, const Lead& lead) {
  size_t size = lead.num_bytes > 0 ? 1 : 0;
  while (size > 0 && size < lead.num_bytes && size < text.size() &&
         in_range(static_cast<uint8_t>(text[size]), size == 1 ? lead.low : 0x80,
                  size == 1 ? lead.high : 0xBF)) {
    ++size;
  }
  return size;
}

/// Bytes of the well-formed character at the front of a non-empty text, 0 if there is none.
size_t character_bytes(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text.front()));
  return begun_bytes(text, lead) == lead.num_bytes ? lead.num_bytes : 0;
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

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  while (const std::optional<size_t> bad = find_invalid_utf8(text)) {
    valid += text.substr(0, *bad);
    valid += "\xEF\xBF\xBD";
    text.remove_prefix(*bad);
    const Lead lead = lead_of(static_cast<uint8_t>(text.front()));
    text.remove_prefix(std::max<size_t>(1, begun_bytes(text, lead)));
  }
  return valid.append(text);
}

void append_utf8(std::string& text, uint32_t code_point) {
  const auto add = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

uint32_t take_code_point(std::string_view& text) {
  constexpr uint32_t kFirstBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};  // by the number of bytes
  const size_t num_bytes = character_bytes(text);
  check(num_bytes > 0, "not UTF-8: byte 0x{:02X}", static_cast<uint8_t>(text.front()));
  uint32_t code_point = static_cast<uint8_t>(text.front()) & kFirstBits[num_bytes];
  for (size_t i = 1; i < num_bytes; ++i) {
    code_point = code_point << 6 | (static_cast<uint8_t>(text[i]) & 0x3F);
  }
  text.remove_prefix(num_bytes);
  return code_point;
}

}  // namespace braid
