#pragma once

#include "backends/arena.h"

namespace braid {

/// cudaMalloc and cudaFree: memory of the device that is current. DeviceError if it has no such
/// block, with the free memory.
const Allocator& cuda_allocator();

/// Zeroed memory of the current device.
class DeviceArena : public Arena {
 public:
  DeviceArena() = default;
  /// Throws DeviceError if the device has no such block.
  DeviceArena(int64_t size_bytes, const std::string& what,
              const Allocator& allocator = cuda_allocator());
};

}  // namespace braid
