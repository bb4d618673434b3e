#include "backends/cuda/pinned_arena.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "backends/cuda/cuda_error.h"

namespace braid {
namespace {

std::byte* allocate(int64_t size_bytes, const std::string& what) {
  void* data = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&data, static_cast<size_t>(size_bytes), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    ignore_error(cudaGetLastError());
    throw_device_error("{}: {} bytes of page-locked host memory are needed, which cannot be had",
                       what, size_bytes);
  }
  cuda_check(status, "cudaHostAlloc");
  return static_cast<std::byte*>(data);
}

void release(std::byte* data, int64_t /*size_bytes*/) {
  ignore_error(cudaFreeHost(data));
}

constexpr Allocator kPageLocked{.allocate = allocate, .release = release};

}  // namespace

PinnedArena::PinnedArena(int64_t size_bytes, const std::string& what)
    : Arena(size_bytes, what, kPageLocked) {
  if (size_bytes > 0) {
    std::memset(data(), 0, static_cast<size_t>(size_bytes));
  }
}

}  // namespace braid
