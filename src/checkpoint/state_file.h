#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace braid {

inline constexpr std::string_view kStateFile = "state.json";

/// What state.json holds.
struct StoredState {
  CheckpointState state;
  std::vector<FileRecord> files;
  /// 1: model.safetensors and optimizer.safetensors hold whole tensors, and there is no index.
  /// 1 and 2: fc1 of the Llama family has all gate rows in front of all up rows; in 3 they take
  /// turns.
  int64_t version = 3;
};

/// As JSON that ends with the checksum of everything in the text but the checksum's own digits.
std::string print_state(const StoredState& stored);

/// Inverse of `print_state`. Throws DataError naming `path` for any text that `print_state` of this
/// version or an earlier one did not write, down to the last byte.
StoredState parse_state(std::string_view text, std::string_view path);

}  // namespace braid
