#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "ir/text.h"
#include "support/source_path.h"

namespace braid {

/// Paths of the program texts in tests/`folder`, sorted.
inline std::vector<std::string> program_files(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/" + folder))) {
    if (entry.path().extension() == ".txt") {
      paths.push_back(entry.path().string());
    }
  }
  std::ranges::sort(paths);
  return paths;
}

inline std::string read_program_text(const std::string& path) {
  return read_text_file(path, int64_t{1} << 20);
}

/// The program tests/programs/`name`.txt.
inline Program read_program(const std::string& name) {
  return parse_program(read_program_text(source_path("tests/programs/" + name + ".txt")));
}

/// The text without lines that are comments.
inline std::string without_comments(const std::string& text) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    if (text[begin] != '#') {
      result += text.substr(begin, end - begin);
    }
    begin = end;
  }
  return result;
}

}  // namespace braid
