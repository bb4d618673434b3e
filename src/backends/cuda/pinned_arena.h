#pragma once

#include "backends/arena.h"

namespace braid {

/// Zeroed page-locked host memory: copy engines access it directly, so that copies run concurrently
/// with kernels and may be part of a graph.
class PinnedArena : public Arena {
 public:
  PinnedArena() = default;
  /// Throws DeviceError if the allocation fails.
  PinnedArena(int64_t size_bytes, const std::string& what);
};

}  // namespace braid
