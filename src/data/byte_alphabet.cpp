#include "data/byte_alphabet.h"

#include <array>

#include "data/utf8.h"

namespace braid {
namespace {

constexpr uint32_t kFirstFree = 0x100;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint32_t, 256> characters{};
  std::array<int16_t, kFirstFree + 256> bytes{};  // by character; -1: of no byte
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  uint32_t next_free = kFirstFree;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t character = stands_for_itself(byte) ? byte : next_free++;
    alphabet.characters[byte] = character;
    alphabet.bytes[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  if (find_invalid_utf8(token)) {
    return std::nullopt;
  }
  std::string bytes;
  while (!token.empty()) {
    const uint32_t character = take_code_point(token);
    const int16_t byte = character < kAlphabet.bytes.size() ? kAlphabet.bytes[character] : -1;
    if (byte < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

std::string character_of_byte(uint8_t byte) {
  std::string text;
  append_utf8(text, kAlphabet.characters[byte]);
  return text;
}

}  // namespace braid
