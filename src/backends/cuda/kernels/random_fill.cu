#include <cuda_bf16.h>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/random_fill.h"
#include "base/errors.h"

namespace braid {
namespace {

// Wang's integer hash: good enough for data that only has to look random to the arithmetic units.
__device__ uint32_t hash(uint32_t x) {
  x = (x ^ 61u) ^ (x >> 16);
  x *= 9u;
  x ^= x >> 4;
  x *= 0x27D4EB2Du;
  return x ^ (x >> 15);
}

template <class T>
__global__ void fill(T* data, int64_t elems, uint32_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elems;
       i += stride) {
    const uint32_t bits =
        hash(hash(static_cast<uint32_t>(i) + seed) ^ static_cast<uint32_t>(i >> 32));
    data[i] = static_cast<T>(static_cast<float>(bits >> 8) * 0x1.0p-23f - 1.0f);
  }
}

}  // namespace

void random_fill(void* data, int64_t elems, DType dtype, uint32_t seed, cudaStream_t stream) {
  constexpr int kBlocks = 1024;
  constexpr int kThreads = 256;
  if (dtype == DType::kBF16) {
    fill<<<kBlocks, kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(data), elems, seed);
  } else if (dtype == DType::kF32) {
    fill<<<kBlocks, kThreads, 0, stream>>>(static_cast<float*>(data), elems, seed);
  } else {
    throw InternalError("no random data of type " + std::string(dtype_name(dtype)));
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
