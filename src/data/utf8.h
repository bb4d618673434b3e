#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

/// Position of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7: no
/// overlong forms, no surrogates, nothing above U+10FFFF); nullopt if the text is well-formed.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// The text with U+FFFD in place of every part that is not well-formed: one for the longest start
/// of a character, else for a byte, as Python's errors="replace" does (Unicode 15, section 3.9,
/// "U+FFFD Substitution of Maximal Subparts").
std::string replace_invalid_utf8(std::string_view text);

/// Appends the bytes of a code point, at most U+10FFFF.
void append_utf8(std::string& text, uint32_t code_point);

/// Takes the first code point off a non-empty text, which must be well-formed.
uint32_t take_code_point(std::string_view& text);

}  // namespace braid
