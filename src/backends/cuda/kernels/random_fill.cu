#include <cuda_bf16.h>
#include <cuda_fp8.h>

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

/// Values between 2^-8 and 1.
struct Scale8 {
  uint8_t bits;
  explicit __device__ Scale8(float value) : bits(static_cast<uint8_t>(123.0f + 4.0f * value)) {}
};

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
  const auto launch = [&]<class T>(T* to) {
    fill<<<kBlocks, kThreads, 0, stream>>>(to, elems, seed);
    BRAID_CUDA_CHECK(cudaGetLastError());
  };
  switch (dtype) {
    case DType::kBF16:
      return launch(static_cast<__nv_bfloat16*>(data));
    case DType::kF32:
      return launch(static_cast<float*>(data));
    case DType::kF8E4M3:
      return launch(static_cast<__nv_fp8_e4m3*>(data));
    case DType::kF8E5M2:
      return launch(static_cast<__nv_fp8_e5m2*>(data));
    case DType::kF8E8M0:
      return launch(static_cast<Scale8*>(data));
    default:
      throw InternalError("no random data of type " + std::string(dtype_name(dtype)));
  }
}

}  // namespace braid
