#include <algorithm>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/finite_check.h"

namespace braid {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;
constexpr unsigned long long kNone = ~0ull;

/// *found: least index of a word with all of these bits.
template <class Word>
__global__ void find_word(const Word* data, int64_t num_elems, Word bits,
                          unsigned long long* found) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_elems; i += stride) {
    if ((data[i] & bits) == bits) {
      atomicMin(found, static_cast<unsigned long long>(i));
      return;  // this thread's later indices are higher
    }
  }
}

template <class Word>
void launch_find(const std::byte* data, int64_t num_elems, uint64_t bits, unsigned long long* found,
                 cudaStream_t stream) {
  const int64_t blocks = std::min(kMaxBlocks, (num_elems + kThreads - 1) / kThreads);
  find_word<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const Word*>(data), num_elems, static_cast<Word>(bits), found);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

std::optional<int64_t> find_non_finite_on_device(const std::byte* data, int64_t num_elems,
                                                 DType dtype, uint64_t* found,
                                                 cudaStream_t stream) {
  const uint64_t bits = non_finite_bits(dtype);
  if (num_elems == 0 || bits == 0) {
    return std::nullopt;
  }
  auto* const least = reinterpret_cast<unsigned long long*>(found);
  BRAID_CUDA_CHECK(cudaMemsetAsync(least, 0xFF, sizeof(*least), stream));
  switch (dtype_bytes(dtype)) {
    case sizeof(uint8_t):
      launch_find<uint8_t>(data, num_elems, bits, least, stream);
      break;
    case sizeof(uint16_t):
      launch_find<uint16_t>(data, num_elems, bits, least, stream);
      break;
    case sizeof(uint32_t):
      launch_find<uint32_t>(data, num_elems, bits, least, stream);
      break;
    default:
      launch_find<uint64_t>(data, num_elems, bits, least, stream);
  }
  unsigned long long index = kNone;
  BRAID_CUDA_CHECK(cudaMemcpyAsync(&index, least, sizeof(index), cudaMemcpyDeviceToHost, stream));
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
  return index == kNone ? std::nullopt : std::optional(static_cast<int64_t>(index));
}

}  // namespace braid
