#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/errors.h"

namespace braid {

/// Functions that allocate and free memory of one kind.
struct Allocator {
  /// Allocates memory; the size is not 0. `what` names the block in the error. Throws DeviceError.
  std::byte* (*allocate)(int64_t size_bytes, const std::string& what) = nullptr;
  void (*release)(std::byte* data, int64_t size_bytes) = nullptr;  ///< throws nothing
};

/// One block of memory with the lifetime of this object. Its kinds (HostArena, DeviceArena,
/// PinnedArena) determine the memory, and zero it.
class Arena {
 public:
  Arena() = default;
  /// `what` names the arena in errors. Throws InternalError for a negative size, and what
  /// `allocator` throws. Does not call it for 0 bytes.
  Arena(int64_t size_bytes, const std::string& what, const Allocator& allocator) {
    check(size_bytes >= 0, "{} of {} bytes", what, size_bytes);
    if (size_bytes > 0) {
      data_ = allocator.allocate(size_bytes, what);
      size_bytes_ = size_bytes;
      release_ = allocator.release;
    }
  }
  ~Arena() {
    if (data_ != nullptr) {
      release_(data_, size_bytes_);
    }
  }
  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    swap(other);
    return *this;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }  ///< null if empty
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void swap(Arena& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(release_, other.release_);
  }

  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  void (*release_)(std::byte* data, int64_t size_bytes) = nullptr;
};

}  // namespace braid
