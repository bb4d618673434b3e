#include "backends/cuda/kernels/weight_grad_parts.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"

namespace braid {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) sum_kernel(WeightGradPartsArgs args) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= args.rows || row >= *args.num_rows) {
    return;
  }
  float sum = 0;
  for (int64_t part = 0; part < args.num_parts; ++part) {
    sum += args.parts[part * args.rows + row];
  }
  args.d_weights[row] = sum;
}

}  // namespace

void sum_weight_grad_parts(const WeightGradPartsArgs& args, cudaStream_t stream) {
  sum_kernel<<<grid_of(ceil_div(args.rows, int64_t{kThreads})), kThreads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
