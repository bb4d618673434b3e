#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

struct PromptLine {
  std::string prompt;
  std::optional<uint64_t> seed;
  int64_t line = 0;  ///< of the file
};

/// Reads prompts: of a file whose name ends with ".jsonl" (or that and the ending of a compressed
/// file) an object per line with "prompt" and, if it has one, "seed"; of any other file the text of
/// each line. Blank lines are no prompts. Throws DataError naming path, line and member.
std::vector<PromptLine> read_prompts(const std::string& path);

}  // namespace braid
