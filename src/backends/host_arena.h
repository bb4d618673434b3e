#pragma once

#include "backends/arena.h"

namespace braid {

/// Zeroed host memory: page-aligned, huge pages asked for, every page touched, so that no page
/// fault and no failure is left for the step.
class HostArena : public Arena {
 public:
  HostArena() = default;
  /// Throws DeviceError if the system has no such memory.
  HostArena(int64_t size_bytes, const std::string& what);
};

}  // namespace braid
