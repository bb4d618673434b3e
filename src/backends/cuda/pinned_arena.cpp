#include "backends/cuda/pinned_arena.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "backends/cuda/cuda_error.h"
#include "base/errors.h"

namespace braid {

PinnedArena::PinnedArena(int64_t size_bytes, const std::string& what) {
  check(size_bytes >= 0, "{}: {} bytes", what, size_bytes);
  if (size_bytes == 0) {
    return;
  }
  void* data = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&data, static_cast<size_t>(size_bytes), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    ignore_error(cudaGetLastError());
    throw_device_error("{}: {} bytes of page-locked host memory are needed, which cannot be had",
                       what, size_bytes);
  }
  cuda_check(status, "cudaHostAlloc");
  data_ = static_cast<std::byte*>(data);
  size_bytes_ = size_bytes;
  std::memset(data_, 0, static_cast<size_t>(size_bytes_));
}

PinnedArena::~PinnedArena() {
  if (data_ != nullptr) {
    ignore_error(cudaFreeHost(data_));
  }
}

PinnedArena::PinnedArena(PinnedArena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

PinnedArena& PinnedArena::operator=(PinnedArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace braid
