#include "backends/cuda/kernels/column_sums.cuh"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"

namespace braid {
namespace {

constexpr int kColumnsPerBlock = 32;
constexpr int kColumnGroups = 32;  // of partial sums, one per warp

/// Up to two sets of sums, one per blockIdx.y.
__global__ void __launch_bounds__(kColumnsPerBlock* kColumnGroups)
    column_sums_kernel(ColumnSumsArgs first, ColumnSumsArgs second) {
  const ColumnSumsArgs args = blockIdx.y == 0 ? first : second;
  __shared__ float shared[kColumnGroups][kColumnsPerBlock];
  const int64_t column = int64_t{blockIdx.x} * kColumnsPerBlock + threadIdx.x;
  float sum = 0;
  if (column < args.width) {
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.y); i < args.num_partials; i += kColumnGroups) {
      sum += args.partials[i * args.width + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= args.width) {
    return;
  }
  const bool is_narrow = args.narrow_sums != nullptr;
  float total = 0.0f;
  if (args.accumulate) {
    total = is_narrow ? __bfloat162float(args.narrow_sums[column]) : args.sums[column];
  }
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
    total += shared[group][threadIdx.x];
  }
  if (is_narrow) {
    args.narrow_sums[column] = __float2bfloat16_rn(total);
  } else {
    args.sums[column] = total;
  }
}

}  // namespace

void launch_column_sums(const ColumnSumsArgs& first, const ColumnSumsArgs& second,
                        cudaStream_t stream) {
  const dim3 grid(grid_of(ceil_div(first.width, kColumnsPerBlock)), second.sums == nullptr ? 1 : 2);
  column_sums_kernel<<<grid, dim3(kColumnsPerBlock, kColumnGroups), 0, stream>>>(first, second);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
