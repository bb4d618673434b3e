#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace braid {

/// One block of zeroed host memory that lives as long as this object: page-aligned, huge pages
/// asked for, every page touched, so that no page fault and no failure is left for the step.
class HostArena {
 public:
  HostArena() = default;
  /// `what` names the arena in the error. Throws DeviceError if the system has no such memory.
  HostArena(int64_t size_bytes, const std::string& what);
  ~HostArena();
  HostArena(HostArena&& other) noexcept;
  HostArena& operator=(HostArena&& other) noexcept;
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* data() const { return data_; }  ///< null if empty
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace braid
