#pragma once

#include <span>
#include <string>
#include <vector>

namespace braid {

/// An entry of data.blend.
struct BlendEntry {
  double weight = 1;
  std::string path;
};

/// Reads entries of data.blend such as "0.7 web_text_document": a weight, blanks, and a path, which
/// may have blanks inside. Throws ConfigError naming the entry unless the weight is a number above
/// 0 and the path is there, and if a path is named twice.
std::vector<BlendEntry> parse_blend(std::span<const std::string> entries);

}  // namespace braid
