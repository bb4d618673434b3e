#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace braid {

/// Position of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7: no
/// overlong forms, no surrogates, nothing above U+10FFFF); nullopt if the text is well-formed.
std::optional<size_t> find_invalid_utf8(std::string_view text);

}  // namespace braid
