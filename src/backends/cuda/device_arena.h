#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace braid {

/// Who gives and takes back the memory of the current device.
struct DeviceAllocator {
  /// `what` names the block in the error. Throws DeviceError.
  std::byte* (*allocate)(int64_t size_bytes, const std::string& what) = nullptr;
  void (*release)(std::byte* data) = nullptr;  ///< throws nothing
};

/// cudaMalloc and cudaFree.
const DeviceAllocator& cuda_allocator();

/// One block of zeroed memory of the current device that lives as long as this object.
class DeviceArena {
 public:
  DeviceArena() = default;
  /// `what` names the arena in the error. Throws DeviceError with the free memory if the device has
  /// no such block.
  DeviceArena(int64_t size_bytes, const std::string& what,
              const DeviceAllocator& allocator = cuda_allocator());
  ~DeviceArena();
  DeviceArena(DeviceArena&& other) noexcept;
  DeviceArena& operator=(DeviceArena&& other) noexcept;
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  std::byte* data() const { return data_; }  ///< null if empty
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  void (*release_)(std::byte* data) = nullptr;
};

}  // namespace braid
