#pragma once

#include "backends/arena.h"

namespace braid {

/// Zeroed page-locked host memory: copy engines reach it without the host's help, so that copies
/// run beside kernels and may be part of a graph.
class PinnedArena : public Arena {
 public:
  PinnedArena() = default;
  /// Throws DeviceError if the host has no such block.
  PinnedArena(int64_t size_bytes, const std::string& what);
};

}  // namespace braid
