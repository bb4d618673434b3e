#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2.cuh"
#include "backends/cuda/kernels/ptx.cuh"

// A block has a chunk and up to kHeads heads. Rows hold the dt of heads side by side, results lie
// head by head: shared memory turns one into the other.
namespace braid {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 32;

/// dt before its limits.
__device__ float unlimited_dt(const Mamba2Args& args, int64_t row, int head) {
  const Mamba2Sizes& s = args.sizes;
  return widen(args.zxbcdt[row * s.row_elems() + s.dt_begin() + head]) + widen(args.dt_bias[head]);
}

__global__ void __launch_bounds__(kThreads) steps_kernel(const __grid_constant__ Mamba2Args args) {
  __shared__ float shared[kSsdChunk][kHeads + 1];
  const Mamba2Sizes& s = args.sizes;
  const ChunkRows rows(s, static_cast<int>(blockIdx.x));
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < kSsdChunk * kHeads; at += kThreads) {
    const int row = at / kHeads;
    const int head = first_head + at % kHeads;
    float dt = 0;
    if (row < rows.count && head < s.heads) {
      dt = softplus(unlimited_dt(args, rows.begin + row, head));
      dt = dt < args.dt_min ? args.dt_min : dt > args.dt_max ? args.dt_max : dt;  // keeps a NaN
    }
    shared[row][at % kHeads] = dt;
  }
  __syncthreads();
  const int lane = thread % kWarpSize;
  for (int h = thread / kWarpSize; h < kHeads && first_head + h < s.heads;
       h += kThreads / kWarpSize) {
    const int head = first_head + h;
    const float log_decay = -expf(widen(args.a_log[head])) * kLog2E;
    const float first = shared[2 * lane][h];
    const float second = shared[2 * lane + 1][h];
    float until = (first + second) * log_decay;  // of the rows up to these two
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, until, distance);
      until += lane >= distance ? before : 0.0f;
    }
    const float before = __shfl_up_sync(0xffffffffu, until, 1);
    const float at_first = (lane > 0 ? before : 0.0f) + first * log_decay;
    const float at_second = at_first + second * log_decay;
    const float whole = __shfl_sync(0xffffffffu, at_second, kWarpSize - 1);
    const int64_t at = head * s.padded_rows() + rows.padded + 2 * lane;
    reinterpret_cast<float2*>(args.dt + at)[0] = {first, second};
    reinterpret_cast<float2*>(args.decay + at)[0] = {at_first, at_second};
    reinterpret_cast<float2*>(args.to_end + at)[0] = {ptx::exp2_approx(whole - at_first) * first,
                                                      ptx::exp2_approx(whole - at_second) * second};
    reinterpret_cast<float2*>(args.from_begin + at)[0] = {ptx::exp2_approx(at_first),
                                                          ptx::exp2_approx(at_second)};
  }
}

/// Of one row and head: what its weights get, and the gradient that zxbcdt gets.
struct StepGrads {
  float dt = 0;
  float log_decay = 0;
};

__device__ StepGrads step_grads(const Mamba2Args& args, const ChunkRows& rows, int row, int head) {
  const int64_t at = head * args.sizes.padded_rows() + rows.padded + row;
  const float u = unlimited_dt(args, rows.begin + row, head);
  const float unlimited = softplus(u);
  const float a = -expf(widen(args.a_log[head]));
  const float d_decay = args.d_decay[at];
  const bool passes = unlimited >= args.dt_min && unlimited <= args.dt_max;
  StepGrads grads;
  grads.dt = passes ? (args.d_dt[at] + a * d_decay) / (1.0f + expf(-u)) : 0.0f;
  grads.log_decay = args.dt[at] * d_decay * a;
  return grads;
}

constexpr int kStepSums = 3;  ///< of dt_bias, a_log and skip

__global__ void __launch_bounds__(kThreads)
    steps_backward_kernel(const __grid_constant__ Mamba2Args args) {
  __shared__ float shared[kStepSums][kSsdChunk][kHeads + 1];
  const Mamba2Sizes& s = args.sizes;
  const ChunkRows rows(s, static_cast<int>(blockIdx.x));
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < kSsdChunk * kHeads; at += kThreads) {
    const int row = at % kSsdChunk;
    const int h = at / kSsdChunk;
    const int head = first_head + h;
    StepGrads grads;
    float dy_x = 0;
    if (row < rows.count && head < s.heads) {
      grads = step_grads(args, rows, row, head);
      dy_x = args.dy_x[head * s.padded_rows() + rows.padded + row];
    }
    shared[0][row][h] = grads.dt;
    shared[1][row][h] = grads.log_decay;
    shared[2][row][h] = dy_x;
  }
  __syncthreads();
  for (int at = thread; at < kSsdChunk * kHeads; at += kThreads) {
    const int row = at / kHeads;
    const int head = first_head + at % kHeads;
    if (row < rows.count && head < s.heads) {
      args.d_zxbcdt[(rows.begin + row) * s.row_elems() + s.dt_begin() + head] =
          narrow<Mamba2Data>(shared[0][row][at % kHeads]);
    }
  }
  for (int at = thread; at < kStepSums * kHeads; at += kThreads) {
    const int head = first_head + at % kHeads;
    if (head < s.heads) {
      float sum = 0;
      for (int row = 0; row < kSsdChunk; ++row) {
        sum += shared[at / kHeads][row][at % kHeads];
      }
      args.partials[(int64_t{at / kHeads} * s.chunks() + blockIdx.x) * s.heads + head] = sum;
    }
  }
}

dim3 grid_of_chunks(const Mamba2Sizes& s) {
  return {static_cast<unsigned>(s.chunks()), static_cast<unsigned>(ceil_div(s.heads, kHeads))};
}

}  // namespace

void launch_mamba2_steps(const Mamba2Args& args, cudaStream_t stream) {
  steps_kernel<<<grid_of_chunks(args.sizes), kThreads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch_mamba2_steps_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                  cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  steps_backward_kernel<<<grid_of_chunks(s), kThreads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
  float* const sums[kStepSums] = {grads.dt_bias, grads.a_log, grads.skip};
  for (int i = 0; i < kStepSums; ++i) {
    launch_column_sums({.partials = args.partials + int64_t{i} * s.chunks() * s.heads,
                        .sums = sums[i],
                        .width = s.heads,
                        .num_partials = s.chunks(),
                        .accumulate = grads.accumulate},
                       {}, stream);
  }
}

}  // namespace braid
