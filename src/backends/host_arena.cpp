#include "backends/host_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace braid {
namespace {

constexpr int64_t kSmallestPageBytes = 4096;

std::byte* allocate(int64_t size_bytes, const std::string& what) {
  const auto size = static_cast<size_t>(size_bytes);
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) {
    throw_device_error("cannot allocate {:.1f} MiB of memory for {}: {}",
                       static_cast<double>(size_bytes) / (1 << 20), what, std::strerror(errno));
  }
  ::madvise(block, size, MADV_HUGEPAGE);  // a hint: kernels without huge pages may refuse
  return static_cast<std::byte*>(block);
}

void release(std::byte* data, int64_t size_bytes) {
  ::munmap(data, static_cast<size_t>(size_bytes));
}

constexpr Allocator kPages{.allocate = allocate, .release = release};

}  // namespace

HostArena::HostArena(int64_t size_bytes, const std::string& what)
    : Arena(size_bytes, what, kPages) {
  for (int64_t at = 0; at < size_bytes; at += kSmallestPageBytes) {
    data()[at] = std::byte{0};
  }
}

}  // namespace braid
