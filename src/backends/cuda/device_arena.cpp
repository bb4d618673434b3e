#include "backends/cuda/device_arena.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_error.h"

namespace braid {
namespace {

std::byte* allocate(int64_t size_bytes, const std::string& what) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(size_bytes));
  if (status == cudaErrorMemoryAllocation) {
    ignore_error(cudaGetLastError());
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    BRAID_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw_device_error("{}: {} bytes are needed, but {} of the GPU's {} bytes are free", what,
                       size_bytes, free_bytes, total_bytes);
  }
  cuda_check(status, "cudaMalloc");
  return static_cast<std::byte*>(data);
}

void release(std::byte* data, int64_t /*size_bytes*/) {
  ignore_error(cudaFree(data));
}

}  // namespace

const Allocator& cuda_allocator() {
  static constexpr Allocator kAllocator{.allocate = allocate, .release = release};
  return kAllocator;
}

DeviceArena::DeviceArena(int64_t size_bytes, const std::string& what, const Allocator& allocator)
    : Arena(size_bytes, what, allocator) {
  if (size_bytes > 0) {
    BRAID_CUDA_CHECK(cudaMemset(data(), 0, static_cast<size_t>(size_bytes)));
    // Required because later streams do not wait for the default stream.
    BRAID_CUDA_CHECK(cudaDeviceSynchronize());
  }
}

}  // namespace braid
