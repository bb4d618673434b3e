#include <algorithm>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/device_hash.h"
#include "backends/element_hash.h"

namespace braid {
namespace {

constexpr int kThreads = 256;
constexpr int kElemsPerTurn = 8;  // of a thread: loads in flight before the first use
constexpr int64_t kMaxBlocks = 2048;
constexpr int kWarpThreads = 32;

__device__ uint64_t sum_of_warp(uint64_t value) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_down_sync(~0u, value, distance);
  }
  return value;
}

/// A turn of a block is kThreads * kElemsPerTurn elements. Integer sums are the same in any order.
template <class Word>
__global__ void add_hash(const Word* data, int64_t num_elems, uint64_t first_index,
                         unsigned long long* sum) {
  constexpr int64_t kTurn = int64_t{kThreads} * kElemsPerTurn;
  uint64_t own = 0;
  for (int64_t turn = int64_t{blockIdx.x} * kTurn; turn < num_elems;
       turn += int64_t{gridDim.x} * kTurn) {
    const int64_t begin = turn + threadIdx.x;
    Word words[kElemsPerTurn];
#pragma unroll
    for (int i = 0; i < kElemsPerTurn; ++i) {
      const int64_t at = begin + int64_t{i} * kThreads;
      words[i] = at < num_elems ? data[at] : Word{0};
    }
#pragma unroll
    for (int i = 0; i < kElemsPerTurn; ++i) {
      const int64_t at = begin + int64_t{i} * kThreads;
      own +=
          at < num_elems ? hash_of_element(first_index + static_cast<uint64_t>(at), words[i]) : 0;
    }
  }
  own = sum_of_warp(own);
  if (threadIdx.x % kWarpThreads == 0) {
    atomicAdd(sum, static_cast<unsigned long long>(own));
  }
}

template <class Word>
void launch(const DeviceElems& elems, uint64_t first_index, uint64_t* sum, cudaStream_t stream) {
  const int64_t turn = int64_t{kThreads} * kElemsPerTurn;
  const int64_t blocks = std::min(kMaxBlocks, (elems.num_elems + turn - 1) / turn);
  add_hash<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const Word*>(elems.data), elems.num_elems, first_index,
      reinterpret_cast<unsigned long long*>(sum));
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void add_hash_on_device(const DeviceElems& elems, uint64_t first_index, uint64_t* sum,
                        cudaStream_t stream) {
  if (elems.num_elems == 0) {
    return;
  }
  switch (dtype_bytes(elems.dtype)) {
    case sizeof(uint8_t):
      return launch<uint8_t>(elems, first_index, sum, stream);
    case sizeof(uint16_t):
      return launch<uint16_t>(elems, first_index, sum, stream);
    case sizeof(uint32_t):
      return launch<uint32_t>(elems, first_index, sum, stream);
    default:
      return launch<uint64_t>(elems, first_index, sum, stream);
  }
}

}  // namespace braid
