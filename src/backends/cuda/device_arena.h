#pragma once

#include "backends/arena.h"

namespace braid {

/// cudaMalloc and cudaFree: memory of the current device. If the allocation fails, throws
/// DeviceError with the free memory.
const Allocator& cuda_allocator();

/// Zeroed memory of the current device.
class DeviceArena : public Arena {
 public:
  DeviceArena() = default;
  /// Throws DeviceError if the allocation fails.
  DeviceArena(int64_t size_bytes, const std::string& what,
              const Allocator& allocator = cuda_allocator());
};

}  // namespace braid
