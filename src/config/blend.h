#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// An entry of data.blend or data.valid.
struct BlendEntry {
  double weight = 1;
  std::string path;
};

/// Reads entries of such a list, which messages name `key`: "0.7 web_text_document": a weight,
/// blanks, and a path, which may have blanks inside. Throws ConfigError naming the entry unless the
/// weight is a number above 0 and the path is there, and if a path is named twice.
std::vector<BlendEntry> parse_blend(std::span<const std::string> entries,
                                    std::string_view key = "data.blend");

}  // namespace braid
