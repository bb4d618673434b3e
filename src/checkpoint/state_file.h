#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace braid {

inline constexpr std::string_view kStateFile = "state.json";

/// The content of state.json.
struct StoredState {
  CheckpointState state;
  std::vector<FileRecord> files;
  /// Version 1: model.safetensors and optimizer.safetensors hold whole tensors, and there is no
  /// index. Versions 1 and 2: fc1 of the Llama family has all gate rows before all up rows; in
  /// version 3 they alternate. Up to version 3 the model presets of a configuration had no scaled
  /// rotary frequencies.
  int64_t version = 4;
};

/// The state as JSON that ends with the checksum of all of the text except the checksum's own
/// digits.
std::string print_state(const StoredState& stored);

/// Inverse of `print_state`. Throws DataError naming `path` unless `print_state` of this version or
/// an earlier one wrote exactly this text.
StoredState parse_state(std::string_view text, std::string_view path);

}  // namespace braid
