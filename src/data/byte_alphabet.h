#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

/// Byte-level vocabularies write each byte as a printable character: itself, where it is one in
/// Latin-1, else the next free one from U+0100 on ("Ġ" is a space, "Ċ" a line end). Source: GPT-2's
/// encoder.py, bytes_to_unicode.

/// The bytes that a token stands for; nullopt if it has another character or is not UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);

/// The character of a byte, as UTF-8.
std::string character_of_byte(uint8_t byte);

}  // namespace braid
