#pragma once

#include "backends/arena.h"

namespace braid {

/// Zeroed host memory: page-aligned, with huge pages requested. Every page is touched, so that no
/// page fault and no failure can happen during a step.
class HostArena : public Arena {
 public:
  HostArena() = default;
  /// Throws DeviceError if the allocation fails.
  HostArena(int64_t size_bytes, const std::string& what);
};

}  // namespace braid
