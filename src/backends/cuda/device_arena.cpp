#include "backends/cuda/device_arena.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "backends/cuda/cuda_error.h"
#include "base/errors.h"

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

}  // namespace

const DeviceAllocator& cuda_allocator() {
  static constexpr DeviceAllocator kAllocator{
      .allocate = allocate, .release = [](std::byte* data) { ignore_error(cudaFree(data)); }};
  return kAllocator;
}

DeviceArena::DeviceArena(int64_t size_bytes, const std::string& what,
                         const DeviceAllocator& allocator) {
  check(size_bytes >= 0, "{}: {} bytes", what, size_bytes);
  if (size_bytes == 0) {
    return;
  }
  data_ = allocator.allocate(size_bytes, what);
  release_ = allocator.release;
  size_bytes_ = size_bytes;
  try {
    BRAID_CUDA_CHECK(cudaMemset(data_, 0, static_cast<size_t>(size_bytes_)));
    BRAID_CUDA_CHECK(
        cudaDeviceSynchronize());  // streams that never wait for the default one follow
  } catch (...) {
    release_(data_);
    throw;
  }
}

DeviceArena::~DeviceArena() {
  if (data_ != nullptr) {
    release_(data_);
  }
}

DeviceArena::DeviceArena(DeviceArena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      release_(other.release_) {}

DeviceArena& DeviceArena::operator=(DeviceArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(release_, other.release_);
  return *this;
}

}  // namespace braid
