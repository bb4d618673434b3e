#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace braid {

/// One block of zeroed page-locked host memory that lives as long as this object: copy engines
/// reach it without the host's help, so that copies run beside kernels and may be part of a graph.
class PinnedArena {
 public:
  PinnedArena() = default;
  /// `what` names the arena in the error. Throws DeviceError if the host has no such block.
  PinnedArena(int64_t size_bytes, const std::string& what);
  ~PinnedArena();
  PinnedArena(PinnedArena&& other) noexcept;
  PinnedArena& operator=(PinnedArena&& other) noexcept;
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  std::byte* data() const { return data_; }  ///< null if empty
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace braid
