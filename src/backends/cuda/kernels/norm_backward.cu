#include <utility>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"
#include "ops/norm.h"

// With h = (x - mean) rstd and g = dy w, per row:
//   layernorm: dx = rstd (g - mean(g) - h mean(g h));  rmsnorm: mean = 0 and without mean(g)
//   dw = sum over rows of dy h;  db = sum over rows of dy
// A block takes every num_blocks-th row, keeps its columns of w and of the sums dw and db in
// registers, and loads the next row while it reduces one. The sums of the blocks go to scratch, and
// a second pass adds them in block order. The number of blocks depends on the shape only, so dw and
// db are bitwise repeatable on any device.
namespace braid {
namespace {

constexpr int kMaxThreads = 512;

/// Null where an op has none.
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
};

/// One row's inputs of one thread: K vectors of V elements, `blockDim.x * V` apart.
template <class T, int K>
struct RowPiece {
  DeviceVector<T, kVectorElems<T>> x[K];
  DeviceVector<T, kVectorElems<T>> dy[K];
};

template <int K, bool kAligned, class T>
__device__ RowPiece<T, K> load_row(const NormBackwardArgs<T>& args, int64_t row) {
  constexpr int V = kVectorElems<T>;
  RowPiece<T, K> piece;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = (k * static_cast<int64_t>(blockDim.x) + threadIdx.x) * V;
    if (c < args.width) {
      piece.x[k] = load_vector<V, kAligned>(args.x + row * args.width + c, args.width - c);
      piece.dy[k] = load_vector<V, kAligned>(args.dy + row * args.width + c, args.width - c);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        piece.x[k].elems[i] = T(0.0f);
        piece.dy[k].elems[i] = T(0.0f);
      }
    }
  }
  return piece;
}

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
__global__ void __launch_bounds__(kMaxThreads, K == 1 && !kCentred ? 2 : 1)
    norm_backward_kernel(NormBackwardArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  __shared__ float2 shared[2][kWarpSize];  // by turns, so that one barrier per row is enough
  const auto column_of = [](int k) {
    return (k * static_cast<int64_t>(blockDim.x) + threadIdx.x) * V;
  };
  DeviceVector<T, V> w[K];
  float dw[K][V] = {};
  float db[K][V] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = column_of(k);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      w[k].elems[i] = T(0.0f);
    }
    if (c < args.width) {
      w[k] = load_vector<V, kAligned>(args.w + c, args.width - c);
    }
  }

  RowPiece<T, K> piece = load_row<K, kAligned>(args, blockIdx.x);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    const float mean = kCentred ? args.mean[row] : 0.0f;
    const float rstd = args.rstd[row];
    DeviceVector<T, V> d_sum[K];
    if (args.d_sum != nullptr) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int64_t c = column_of(k);
        if (c < args.width) {
          d_sum[k] = load_vector<V, kAligned>(args.d_sum + row * args.width + c, args.width - c);
        }
      }
    }
    const int64_t next_row = row + gridDim.x;
    RowPiece<T, K> next = load_row<K, kAligned>(args, next_row < args.rows ? next_row : row);

    float2 sums{0, 0};  // of g and g h
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float h = (widen(piece.x[k].elems[i]) - mean) * rstd;
        const float d = widen(piece.dy[k].elems[i]);
        const float g = d * widen(w[k].elems[i]);
        sums.y += g * h;
        dw[k][i] += d * h;
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
    const float mean_g = sums.x / static_cast<float>(args.width);
    const float mean_gh = sums.y / static_cast<float>(args.width);

#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t c = column_of(k);
      if (c < args.width) {
        DeviceVector<T, V> dx;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const float h = (widen(piece.x[k].elems[i]) - mean) * rstd;
          const float g = widen(piece.dy[k].elems[i]) * widen(w[k].elems[i]);
          const float slope = rstd * (g - h * mean_gh - (kCentred ? mean_g : 0.0f));
          dx.elems[i] = narrow<T>(args.d_sum == nullptr ? slope : slope + widen(d_sum[k].elems[i]));
        }
        store_vector<kAligned>(args.dx + row * args.width + c, dx, args.width - c);
      }
    }
    piece = next;
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

/// How the shape is cut: one wave of blocks on 132 multiprocessors, with the threads that the
/// registers leave room for (1024 of 64 registers, 512 of 128). A device with another number of
/// them gives the same bits.
struct BackwardGrid {
  unsigned threads = 0;
  unsigned num_blocks = 0;
  int vectors_per_thread = 1;

  BackwardGrid(int64_t rows, int64_t vectors, bool centred) {
    vectors_per_thread = vectors <= kMaxThreads ? 1 : vectors <= 2 * kMaxThreads ? 2 : 4;
    const int64_t warps = ceil_div(vectors, int64_t{vectors_per_thread} * kWarpSize);
    threads = static_cast<unsigned>(warps * kWarpSize);
    const unsigned resident = vectors_per_thread == 1 && !centred ? 1024 : 512;
    const unsigned blocks_per_sm = std::min(8u, resident / threads);
    num_blocks = static_cast<unsigned>(std::min<int64_t>(rows, 132 * blocks_per_sm));
  }
};

template <bool kCentred, bool kAligned, class T>
void launch_norm_backward(const NormBackwardArgs<T>& args, const BackwardGrid& grid,
                          cudaStream_t stream) {
  if (grid.vectors_per_thread == 1) {
    norm_backward_kernel<kCentred, kAligned, 1><<<grid.num_blocks, grid.threads, 0, stream>>>(args);
  } else if (grid.vectors_per_thread == 2) {
    norm_backward_kernel<kCentred, kAligned, 2><<<grid.num_blocks, grid.threads, 0, stream>>>(args);
  } else {
    norm_backward_kernel<kCentred, kAligned, 4><<<grid.num_blocks, grid.threads, 0, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
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
  const BackwardGrid grid(rows, ceil_div(width, V), kCentred);
  const size_t partial_bytes =
      static_cast<size_t>(ceil_div(grid.num_blocks * width, 64)) * 64 * sizeof(float);
  const auto launch = [=](const CudaKernelArgs& args) {
    auto o = backward_operands<kCentred, T>(args, attributes.has_d_sum);
    float* const dw = std::exchange(o.dw, reinterpret_cast<float*>(args.scratch));
    float* const db = std::exchange(
        o.db, kCentred ? reinterpret_cast<float*>(args.scratch + partial_bytes) : nullptr);
    o.rows = rows;
    o.width = width;
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
