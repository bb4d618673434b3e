#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace braid {

/// Writes PREFIX.bin and PREFIX.idx; every sequence becomes a document of its own.
inline void write_dataset(const std::string& prefix,
                          const std::vector<std::vector<int32_t>>& sequences,
                          TokenType type = TokenType::kU16) {
  IndexedDatasetWriter writer(prefix, type);
  for (const std::vector<int32_t>& sequence : sequences) {
    writer.add_sequence(sequence);
    writer.end_document();
  }
  writer.commit();
}

/// Sequences of these lengths; the tokens count up from 0 over all of them, so that a token names
/// its place.
inline std::vector<std::vector<int32_t>> counting_sequences(const std::vector<int32_t>& lengths) {
  std::vector<std::vector<int32_t>> sequences;
  int32_t next = 0;
  for (const int32_t length : lengths) {
    auto& sequence = sequences.emplace_back();
    for (int32_t i = 0; i < length; ++i) {
      sequence.push_back(next++);
    }
  }
  return sequences;
}

}  // namespace braid
