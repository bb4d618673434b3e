#pragma once

#include <string>

#include "data/random_state.h"

namespace braid {

/// Text with words, numbers, indentation and paragraphs, the same for the same seed: enough for
/// small vocabularies.
inline std::string sample_text(int num_lines, uint64_t seed = 1) {
  static const char* const kWords[] = {
      "the",   "quick", "fox",    "jumps",  "over", "lazy",  "dog",      "program",
      "tasks", "and",   "stream", "buffer", "rank", "event", "gradient", "caf\xC3\xA9"};
  RandomState random(seed);
  std::string text;
  for (int line = 0; line < num_lines; ++line) {
    text += line % 7 == 3 ? "    " : "";
    const uint64_t num_words = 3 + random.next_at_most(6);
    for (uint64_t i = 0; i < num_words; ++i) {
      text += kWords[random.next_at_most(15)];
      text += i + 1 < num_words ? " " : "";
    }
    text += line % 5 == 4 ? ".\n\n" : ",\n";
    if (line % 11 == 0) {
      text += std::to_string(random.next_u32()) + "\n";
    }
  }
  return text;
}

}  // namespace braid
