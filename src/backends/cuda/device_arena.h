#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace braid {

/// One block of zeroed memory of the current device that lives as long as this object.
class DeviceArena {
 public:
  DeviceArena() = default;
  /// `what` names the arena in the error. Throws DeviceError with the free memory if the device has
  /// no such block.
  DeviceArena(int64_t size_bytes, const std::string& what);
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
};

}  // namespace braid
