#include "backends/cpu/host_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

constexpr int64_t kSmallestPageBytes = 4096;

}  // namespace

HostArena::HostArena(int64_t size_bytes, const std::string& what) : size_bytes_(size_bytes) {
  check(size_bytes >= 0, "{} of {} bytes", what, size_bytes);
  if (size_bytes == 0) {
    return;
  }
  const auto size = static_cast<size_t>(size_bytes);
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) {
    throw_device_error("cannot allocate {:.1f} MiB of memory for {}: {}",
                       static_cast<double>(size_bytes) / (1 << 20), what, std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(block);
  ::madvise(block, size, MADV_HUGEPAGE);  // only a wish: a kernel without huge pages may refuse
  for (int64_t at = 0; at < size_bytes; at += kSmallestPageBytes) {
    data_[at] = std::byte{0};
  }
}

HostArena::~HostArena() {
  if (data_ != nullptr) {
    ::munmap(data_, static_cast<size_t>(size_bytes_));
  }
}

HostArena::HostArena(HostArena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

HostArena& HostArena::operator=(HostArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace braid
