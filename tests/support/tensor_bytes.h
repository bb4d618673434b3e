#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/safetensors.h"

namespace braid {

/// All bytes of a tensor of a file.
inline std::vector<std::byte> tensor_bytes(const SafetensorsFile& file, const TensorEntry& entry) {
  std::vector<std::byte> bytes(static_cast<size_t>(entry.end_bytes - entry.begin_bytes));
  file.reader(entry).read(bytes);
  return bytes;
}

}  // namespace braid
