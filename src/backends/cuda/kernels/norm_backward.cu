#include <cuda_pipeline.h>

#include <utility>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"
#include "ops/norm.h"

// With u = x - mean, h = u rstd and g = dy (w + weight_offset), per row:
//   layernorm: dx = rstd (g - mean(g) - h mean(g h)) = rstd g - u rstd^3 mean(g u) - rstd mean(g)
//   rmsnorm: mean = 0 and without mean(g)
//   dw = sum over rows of dy h;  db = sum over rows of dy
// A block takes every num_blocks-th row and keeps its columns of w and of the sums dw and db in
// registers. Rows arrive in shared memory by asynchronous copies, some rows ahead of their use; a
// thread reads only what it has copied itself, so the one barrier per row is that of the sums over
// it. The sums of the blocks go to scratch, and a second pass adds them in block order. The number
// of blocks depends on the shape only, so dw and db are bitwise repeatable on any device.
namespace braid {
namespace {

constexpr int kMaxThreads = kNormBackwardMaxThreads;

/// Pointers are null if an op lacks the operand.
template <class T>
struct NormBackwardArgs {
  const T* x = nullptr;         // [N,C]
  const T* w = nullptr;         // [C]
  const float* mean = nullptr;  // f32 [N]
  const float* rstd = nullptr;  // f32 [N]
  const T* dy = nullptr;        // [N,C]
  const T* d_sum = nullptr;     // [N,C]
  T* dx = nullptr;              // [N,C]
  float* dw = nullptr;          // f32 [num_blocks,C], partial sums
  float* db = nullptr;          // f32 [num_blocks,C]
  int64_t rows = 0;
  int64_t width = 0;
  float offset = 0;  // of w
};

/// Rows being loaded or in use: as many as fit into the shared memory of a multiprocessor with 512
/// or 1024 threads' vectors.
constexpr int rows_in_flight(int vectors_per_thread) {
  return vectors_per_thread <= 2 ? 4 : 2;
}

/// Copies of the inputs of rows into shared memory: x, dy and d_sum, K vectors of 16 bytes per
/// thread and row, `blockDim.x` vectors apart.
template <int K, bool kAligned, class T>
class RowPipeline {
 public:
  static constexpr int kStages = rows_in_flight(K);
  static constexpr int kVectorsPerThread = kStages * 3 * K;
  enum Input { kX, kDy, kDSum };

  __device__ explicit RowPipeline(const NormBackwardArgs<T>& args, uint4* shared)
      : args_(args), shared_(shared) {}

  /// Starts the copies of a row, if the row exists. Call it for every row, kStages - 1 rows ahead
  /// of its use.
  __device__ void start(int64_t row, int stage) {
    if (row < args_.rows) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        copy(args_.x, row, k, slot(stage, kX, k));
        copy(args_.dy, row, k, slot(stage, kDy, k));
        if (args_.d_sum != nullptr) {
          copy(args_.d_sum, row, k, slot(stage, kDSum, k));
        }
      }
    }
    __pipeline_commit();
  }
  /// Waits for the oldest started row.
  __device__ void wait() {
    __pipeline_wait_prior(kStages - 1);
  }

  __device__ DeviceVector<T, kVectorElems<T>> get(int stage, Input input, int k) const {
    DeviceVector<T, kVectorElems<T>> vector;
    const uint4 word = *slot(stage, input, k);
    memcpy(vector.elems, &word, sizeof(word));
    return vector;
  }

 private:
  __device__ uint4* slot(int stage, Input input, int k) const {
    return shared_ + ((stage * 3 + input) * K + k) * static_cast<int>(blockDim.x) + threadIdx.x;
  }
  __device__ void copy(const T* from, int64_t row, int k, uint4* to) const {
    constexpr int V = kVectorElems<T>;
    const int64_t c = (k * static_cast<int64_t>(blockDim.x) + threadIdx.x) * V;
    if (c >= args_.width) {
      return;
    }
    if constexpr (kAligned) {
      __pipeline_memcpy_async(to, from + row * args_.width + c, sizeof(uint4));
    } else {
      const auto vector = load_vector<V, false>(from + row * args_.width + c, args_.width - c);
      memcpy(to, vector.elems, sizeof(uint4));
    }
  }

  const NormBackwardArgs<T>& args_;
  uint4* shared_;
};

/// Sums of both over the block; `shared` as in block_sum.
__device__ float2 block_sum_of_two(float2 value, float2* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = {warp_sum(value.x), warp_sum(value.y)};
  if (num_warps == 1) {
    return value;
  }
  if (lane == 0) {
    shared[threadIdx.x / kWarpSize] = value;
  }
  __syncthreads();
  const float2 mine = lane < num_warps ? shared[lane] : float2{0, 0};
  return {warp_sum(mine.x), warp_sum(mine.y)};
}

template <bool kCentred, bool kAligned, int K, class T>
__global__ void __launch_bounds__(kMaxThreads, K == 1 ? 2 : 1)
    norm_backward_kernel(const __grid_constant__ NormBackwardArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  using Rows = RowPipeline<K, kAligned, T>;
  extern __shared__ uint4 row_memory[];
  __shared__ float2 shared[2][kWarpSize];  // used alternately, so that one barrier per row is
                                           // enough
  const auto column_of = [](int k) {
    return (k * static_cast<int64_t>(blockDim.x) + threadIdx.x) * V;
  };
  Rows rows(args, row_memory);
#pragma unroll
  for (int ahead = 0; ahead < Rows::kStages - 1; ++ahead) {
    rows.start(blockIdx.x + ahead * int64_t{gridDim.x}, ahead);
  }
  DeviceVector<T, V> w[K];
  float dw[K][V] = {};
  float db[K][V] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = column_of(k);
    if (c < args.width) {
      w[k] = load_vector<V, kAligned>(args.w + c, args.width - c);
    }
  }
  float next_mean = kCentred ? args.mean[blockIdx.x] : 0.0f;
  float next_rstd = args.rstd[blockIdx.x];
  int stage = 0;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    rows.start(row + (Rows::kStages - 1) * int64_t{gridDim.x},
               (stage + Rows::kStages - 1) % Rows::kStages);
    const float mean = next_mean;
    const float rstd = next_rstd;
    const int64_t next_row = min(row + gridDim.x, args.rows - 1);
    next_mean = kCentred ? args.mean[next_row] : 0.0f;
    next_rstd = args.rstd[next_row];
    rows.wait();

    DeviceVector<T, V> x[K];
    DeviceVector<T, V> dy[K];
    float2 sums{0, 0};  // of g and g u
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column_of(k) >= args.width) {
        continue;
      }
      x[k] = rows.get(stage, Rows::kX, k);
      dy[k] = rows.get(stage, Rows::kDy, k);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float u = widen(x[k].elems[i]) - mean;
        const float d = widen(dy[k].elems[i]);
        const float g = d * (widen(w[k].elems[i]) + args.offset);
        sums.y += g * u;
        dw[k][i] += d * (u * rstd);
        if constexpr (kCentred) {
          sums.x += g;
          db[k][i] += d;
        }
      }
    }
    if constexpr (kCentred) {
      sums = block_sum_of_two(sums, shared[turn]);
    } else {
      sums.y = block_sum(sums.y, &shared[turn][0].x);
    }
    const float of_one = rstd * sums.x / static_cast<float>(args.width);
    const float of_u = rstd * rstd * rstd * sums.y / static_cast<float>(args.width);

#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t c = column_of(k);
      if (c >= args.width) {
        continue;
      }
      DeviceVector<T, V> d_sum;
      if (args.d_sum != nullptr) {
        d_sum = rows.get(stage, Rows::kDSum, k);
      }
      DeviceVector<T, V> dx;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float u = widen(x[k].elems[i]) - mean;
        const float g = widen(dy[k].elems[i]) * (widen(w[k].elems[i]) + args.offset);
        const float rest = args.d_sum == nullptr ? 0.0f : widen(d_sum.elems[i]);
        dx.elems[i] = narrow<T>(rstd * g - of_u * u - of_one + rest);
      }
      store_vector<kAligned>(args.dx + row * args.width + c, dx, args.width - c);
    }
    stage = (stage + 1) % Rows::kStages;
  }

#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = column_of(k);
    if (c < args.width) {
      DeviceVector<float, V> sums;
      memcpy(sums.elems, dw[k], sizeof(sums));
      store_vector<kAligned>(args.dw + blockIdx.x * args.width + c, sums, args.width - c);
      if constexpr (kCentred) {
        memcpy(sums.elems, db[k], sizeof(sums));
        store_vector<kAligned>(args.db + blockIdx.x * args.width + c, sums, args.width - c);
      }
    }
  }
}

template <bool kCentred, bool kAligned, int K, class T>
void launch_with_vectors(const NormBackwardArgs<T>& args, const NormBackwardGrid& grid,
                         cudaStream_t stream) {
  const auto kernel = norm_backward_kernel<kCentred, kAligned, K, T>;
  const size_t shared_bytes =
      sizeof(uint4) * RowPipeline<K, kAligned, T>::kVectorsPerThread * grid.threads;
  BRAID_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)));
  kernel<<<grid.num_blocks, grid.threads, shared_bytes, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <bool kCentred, bool kAligned, class T>
void launch_norm_backward(const NormBackwardArgs<T>& args, const NormBackwardGrid& grid,
                          cudaStream_t stream) {
  if (grid.vectors_per_thread == 1) {
    launch_with_vectors<kCentred, kAligned, 1>(args, grid, stream);
  } else if (grid.vectors_per_thread == 2) {
    launch_with_vectors<kCentred, kAligned, 2>(args, grid, stream);
  } else {
    launch_with_vectors<kCentred, kAligned, 4>(args, grid, stream);
  }
}

/// Operands in the order in which ops/norm.h lists them; dw and db are those of the second pass.
template <bool kCentred, class T>
NormBackwardArgs<T> backward_operands(const CudaKernelArgs& args, bool has_d_sum) {
  size_t next = 0;
  NormBackwardArgs<T> o;
  o.x = args.data<const T>(next++);
  o.w = args.data<const T>(next++);
  o.mean = kCentred ? args.data<const float>(next++) : nullptr;
  o.rstd = args.data<const float>(next++);
  o.dy = args.data<const T>(next++);
  o.d_sum = has_d_sum ? args.data<const T>(next++) : nullptr;
  o.dx = args.data<T>(next++);
  o.dw = args.data<float>(next++);
  o.db = kCentred ? args.data<float>(next++) : nullptr;
  return o;
}

template <bool kCentred, class T>
CudaKernel backward_kernel(const OpSpec& spec) {
  constexpr int V = kVectorElems<T>;
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const auto attributes = attributes_of<NormBackwardAttributes>(spec);
  constexpr int64_t kMaxWidth = int64_t{4} * kMaxThreads * V;
  check(width <= kMaxWidth, "op {}: rows of {} elements; its kernel holds up to {} in registers",
        spec.op, width, kMaxWidth);
  const NormBackwardGrid grid(rows, ceil_div(width, V));
  const size_t partial_bytes = grid.partial_bytes(width);
  const auto launch = [=](const CudaKernelArgs& args) {
    auto o = backward_operands<kCentred, T>(args, attributes.has_d_sum);
    float* const dw = std::exchange(o.dw, reinterpret_cast<float*>(args.scratch));
    float* const db = std::exchange(
        o.db, kCentred ? reinterpret_cast<float*>(args.scratch + partial_bytes) : nullptr);
    o.rows = rows;
    o.width = width;
    o.offset = static_cast<float>(attributes.offset.weight_offset);
    if (width % V == 0 && all_aligned(16, {o.x, o.w, o.dy, o.d_sum, o.dx})) {
      launch_norm_backward<kCentred, true>(o, grid, args.stream);
    } else {
      launch_norm_backward<kCentred, false>(o, grid, args.stream);
    }
    const auto sums_of = [&](const float* partials, float* sums) {
      return ColumnSumsArgs{.partials = partials,
                            .sums = sums,
                            .width = width,
                            .num_partials = static_cast<int>(grid.num_blocks),
                            .accumulate = attributes.accumulate};
    };
    launch_column_sums(sums_of(o.dw, dw), sums_of(o.db, db), args.stream);
  };
  return {.launch = launch, .scratch_bytes = partial_bytes * (kCentred ? 2 : 1)};
}

}  // namespace

CudaKernel make_cuda_rmsnorm_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() { return backward_kernel<false, T>(spec); });
}

CudaKernel make_cuda_layernorm_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() { return backward_kernel<true, T>(spec); });
}

}  // namespace braid
