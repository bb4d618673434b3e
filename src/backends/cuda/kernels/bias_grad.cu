// Two steps without atomics: blocks sum tiles of rows into scratch [chunks, columns], then the
// chunks of a column are added in a fixed order. Reads dy once; the minimum time is its bytes over
// the memory bandwidth.
#include <cuda_bf16.h>

#include <string>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/bias_grad.h"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int kLanes = 32;      // adjacent threads along a row
constexpr int kRowThreads = 8;  // rows of a block in flight

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T elems[kWidth];
};

/// partial[chunk][column] = sum of x over the rows of the chunk; a thread owns kWidth columns.
template <class T, int kWidth>
__global__ void sum_chunks(const T* x, int64_t rows, int64_t columns, int64_t rows_per_chunk,
                           float* partial) {
  __shared__ float sums[kRowThreads][kLanes * kWidth];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * kWidth;
  const int64_t first = blockIdx.y * rows_per_chunk;
  const int64_t last = min(rows, first + rows_per_chunk);
  float sum[kWidth] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = first + threadIdx.y; row < last; row += kRowThreads) {
      const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(x + row * columns + column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sum[i] += static_cast<float>(pack.elems[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    sums[threadIdx.y][threadIdx.x * kWidth + i] = sum[i];
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y) * kLanes + static_cast<int>(threadIdx.x);
  for (int i = thread; i < kLanes * kWidth; i += kLanes * kRowThreads) {
    const int64_t to = static_cast<int64_t>(blockIdx.x) * kLanes * kWidth + i;
    if (to < columns) {
      float total = 0;
#pragma unroll
      for (int y = 0; y < kRowThreads; ++y) {
        total += sums[y][i];
      }
      partial[blockIdx.y * columns + to] = total;
    }
  }
}

template <class T, int kWidth>
void launch(const BiasGradArgs& args, cudaStream_t stream) {
  const int64_t chunks = bias_grad_chunks(args.rows, args.columns);
  const int64_t rows_per_chunk = (args.rows + chunks - 1) / chunks;
  const int64_t tile = kLanes * kWidth;
  const dim3 grid(static_cast<unsigned>((args.columns + tile - 1) / tile),
                  static_cast<unsigned>(chunks));
  sum_chunks<T, kWidth><<<grid, dim3(kLanes, kRowThreads), 0, stream>>>(
      static_cast<const T*>(args.dy), args.rows, args.columns, rows_per_chunk, args.scratch);
  BRAID_CUDA_CHECK(cudaGetLastError());
  launch_column_sums({.partials = args.scratch,
                      .sums = args.db,
                      .narrow_sums = args.narrow_db,
                      .width = args.columns,
                      .num_partials = static_cast<int>(chunks),
                      .accumulate = args.accumulate},
                     {}, stream);
}

/// Loads of 16 bytes if each row is a multiple of 16 bytes.
template <class T>
void launch_widest(const BiasGradArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  if (args.columns % kWidth == 0) {
    launch<T, kWidth>(args, stream);
  } else {
    launch<T, 1>(args, stream);
  }
}

}  // namespace

void bias_grad(const BiasGradArgs& args, cudaStream_t stream) {
  if (reinterpret_cast<uintptr_t>(args.dy) % 16 != 0) {
    throw InternalError("dy is not 16-byte aligned");
  }
  if (args.dtype == DType::kBF16) {
    launch_widest<__nv_bfloat16>(args, stream);
  } else if (args.dtype == DType::kF32) {
    launch_widest<float>(args, stream);
  } else {
    throw InternalError("no bias gradient of type " + std::string(dtype_name(args.dtype)));
  }
}

}  // namespace braid
