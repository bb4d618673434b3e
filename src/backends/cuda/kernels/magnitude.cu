// Lengths of rows: a block of threads takes a few rows of w and all of their columns, and reads the
// rows of a for each of them at once; sums are fp32 in an order that depends on the width only.
// Magnitudes: a thread keeps the gains of its columns in registers for all rows of its chunk.
#include "ops/magnitude.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/cuda/kernels/vector_rows.cuh"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr int kSquaredRows = 8;  // of w per block: 8 x 8 sums in registers for bf16

/// One factor b, and the rows of w that it adapts.
template <class T>
struct SquaresArgs {
  const T* w = nullptr;      // [M, K]
  const T* a = nullptr;      // [rank, K], those of this factor
  const T* b = nullptr;      // [rows, rank]
  float* squares = nullptr;  // [2, M]
  int64_t num_rows = 0;      // M
  int64_t width = 0;         // K
  int64_t rows = 0;
  int64_t begin = 0;
  int64_t step = 1;
  int rank = 0;
  float scale = 1.0f;
};

template <bool kAligned, class T>
__global__ void __launch_bounds__(kRowThreads) squares_kernel(SquaresArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  __shared__ float shared[2 * kSquaredRows][kWarpSize];
  const int64_t first = int64_t{blockIdx.x} * kSquaredRows;
  float base[kSquaredRows] = {};
  float adapted[kSquaredRows] = {};
  for (int64_t c = int64_t{threadIdx.x} * V; c < args.width; c += int64_t{blockDim.x} * V) {
    const int64_t valid = args.width - c;
    float change[kSquaredRows][V] = {};
    for (int r = 0; r < args.rank; ++r) {
      const auto a = load_vector<V, kAligned>(args.a + r * args.width + c, valid);
#pragma unroll
      for (int i = 0; i < kSquaredRows; ++i) {
        const int64_t row = min(first + i, args.rows - 1);
        const float b = widen(args.b[row * args.rank + r]);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          change[i][v] = __fmaf_rn(b, widen(a.elems[v]), change[i][v]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSquaredRows; ++i) {
      const int64_t row = args.begin + min(first + i, args.rows - 1) * args.step;
      const auto w = load_vector<V, kAligned>(args.w + row * args.width + c, valid);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float of_w = widen(w.elems[v]);
        const float of_v = __fmaf_rn(args.scale, change[i][v], of_w);
        base[i] = __fmaf_rn(of_w, of_w, base[i]);
        adapted[i] = __fmaf_rn(of_v, of_v, adapted[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSquaredRows; ++i) {
    base[i] = block_sum(base[i], shared[2 * i]);
    adapted[i] = block_sum(adapted[i], shared[2 * i + 1]);
    if (threadIdx.x == 0 && first + i < args.rows) {
      const int64_t row = args.begin + (first + i) * args.step;
      args.squares[row] = base[i];
      args.squares[args.num_rows + row] = adapted[i];
    }
  }
}

template <class T>
void launch_squares(const SquaresArgs<T>& o, cudaStream_t stream) {
  const unsigned blocks = grid_of(ceil_div(o.rows, kSquaredRows));
  const unsigned threads = threads_of_row<T>(o.width);
  if (has_vectors<T>(o.width, {o.w, o.a})) {
    squares_kernel<true><<<blocks, threads, 0, stream>>>(o);
  } else {
    squares_kernel<false><<<blocks, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

constexpr int kLanes = 32;       // adjacent threads along a row
constexpr int kRowsAtOnce = 8;   // rows of a block in flight
constexpr int kChunkRows = 128;  // of a block, without a backward

template <class T>
struct MagnitudeArgs {
  const T* v = nullptr;            // [N, M]
  const T* change = nullptr;       // [M]
  const float* squares = nullptr;  // [2, M]
  const T* bias = nullptr;         // [M], forward only; null: there is none to add
  T* y = nullptr;                  // [N, M], forward only
  const T* dy = nullptr;           // [N, M], backward only
  T* dv = nullptr;                 // [N, M], backward only
  float* partials = nullptr;       // [chunks, M], backward only
  int64_t rows = 0;                // N
  int64_t width = 0;               // M
  int64_t chunk_rows = 0;
};

struct Gain {
  float gain = 1.0f;
  float inverse = 0.0f;  // 1 / the length that the row of the weight has; 0 without an adapter
};

template <class T>
__device__ Gain gain_of(const MagnitudeArgs<T>& args, int64_t column) {
  const float adapted = column < args.width ? args.squares[args.width + column] : 0.0f;
  if (!(adapted > 0.0f)) {
    return {};
  }
  const float length = sqrtf(adapted);
  const float wanted = sqrtf(args.squares[column]) + widen(args.change[column]);
  return {__fdiv_rn(wanted, length), __fdiv_rn(1.0f, length)};
}

/// The columns and rows of a thread.
template <class T>
struct ThreadTile {
  static constexpr int V = kVectorElems<T>;
  int64_t column;
  int64_t first;
  int64_t last;

  __device__ explicit ThreadTile(const MagnitudeArgs<T>& args)
      : column((int64_t{blockIdx.x} * kLanes + threadIdx.x) * V),
        first(blockIdx.y * args.chunk_rows),
        last(min(args.rows, first + args.chunk_rows)) {
    first += threadIdx.y;
  }
};

template <bool kAligned, class T>
__global__ void __launch_bounds__(kLanes* kRowsAtOnce) apply_kernel(MagnitudeArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const ThreadTile<T> tile(args);
  const int64_t valid = args.width - tile.column;
  if (valid <= 0) {
    return;
  }
  float gain[V];
  float bias[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    gain[i] = gain_of(args, tile.column + i).gain;
    bias[i] = args.bias != nullptr && i < valid ? widen(args.bias[tile.column + i]) : 0.0f;
  }
#pragma unroll 4
  for (int64_t row = tile.first; row < tile.last; row += kRowsAtOnce) {
    const int64_t at = row * args.width + tile.column;
    const auto v = load_vector<V, kAligned>(args.v + at, valid);
    DeviceVector<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y.elems[i] = narrow<T>(__fmaf_rn(gain[i], widen(v.elems[i]), bias[i]));
    }
    store_vector<kAligned>(args.y + at, y, valid);
  }
}

/// Writes dv, and the chunk's sums of dchange.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kLanes* kRowsAtOnce) backward_kernel(MagnitudeArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  __shared__ float shared[kRowsAtOnce][kLanes * V];
  const ThreadTile<T> tile(args);
  const int64_t valid = args.width - tile.column;
  Gain gain[V];
  float sums[V] = {};
#pragma unroll
  for (int i = 0; i < V; ++i) {
    gain[i] = gain_of(args, tile.column + i);
  }
  if (valid > 0) {
#pragma unroll 4
    for (int64_t row = tile.first; row < tile.last; row += kRowsAtOnce) {
      const int64_t at = row * args.width + tile.column;
      const auto v = load_vector<V, kAligned>(args.v + at, valid);
      const auto dy = load_vector<V, kAligned>(args.dy + at, valid);
      DeviceVector<T, V> dv;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float d = widen(dy.elems[i]);
        sums[i] = __fmaf_rn(d, widen(v.elems[i]), sums[i]);
        dv.elems[i] = narrow<T>(gain[i].gain * d);
      }
      store_vector<kAligned>(args.dv + at, dv, valid);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    shared[threadIdx.y][threadIdx.x * V + i] = sums[i] * gain[i].inverse;
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y) * kLanes + static_cast<int>(threadIdx.x);
  for (int i = thread; i < kLanes * V; i += kLanes * kRowsAtOnce) {
    const int64_t column = int64_t{blockIdx.x} * kLanes * V + i;
    if (column < args.width) {
      float total = 0.0f;
#pragma unroll
      for (int y = 0; y < kRowsAtOnce; ++y) {
        total += shared[y][i];
      }
      args.partials[blockIdx.y * args.width + column] = total;
    }
  }
}

/// Blocks for all columns and chunks of rows.
template <class T>
dim3 grid_of_tiles(int64_t chunks, int64_t width) {
  constexpr int64_t kMaxChunks = 65535;
  check(chunks <= kMaxChunks, "{} chunks of rows", chunks);
  return {grid_of(ceil_div(width, int64_t{kLanes} * kVectorElems<T>)),
          static_cast<unsigned>(chunks)};
}

template <class T>
void launch_apply(const MagnitudeArgs<T>& o, cudaStream_t stream) {
  const dim3 grid = grid_of_tiles<T>(ceil_div(o.rows, o.chunk_rows), o.width);
  const dim3 threads(kLanes, kRowsAtOnce);
  if (has_vectors<T>(o.width, {o.v, o.y})) {
    apply_kernel<true><<<grid, threads, 0, stream>>>(o);
  } else {
    apply_kernel<false><<<grid, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void launch_backward(const MagnitudeArgs<T>& o, int64_t chunks, cudaStream_t stream) {
  const dim3 grid = grid_of_tiles<T>(chunks, o.width);
  const dim3 threads(kLanes, kRowsAtOnce);
  if (has_vectors<T>(o.width, {o.v, o.dy, o.dv})) {
    backward_kernel<true><<<grid, threads, 0, stream>>>(o);
  } else {
    backward_kernel<false><<<grid, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_adapted_squares(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<AdaptedSquaresAttributes>(spec).adapters;
  const size_t num_factors = spec.operands.size() - 3;
  const Shape w = spec.operands[0].shape;
  const int64_t rank = spec.operands[2].shape[1];
  std::array<int64_t, kMostAdapters> rows{};
  for (size_t i = 0; i < num_factors; ++i) {
    rows[i] = spec.operands[i + 2].shape[0];
  }
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      auto* const squares = args.data<float>(num_factors + 2);
      BRAID_CUDA_CHECK(
          cudaMemsetAsync(squares, 0, static_cast<size_t>(2 * w[0]) * sizeof(float), args.stream));
      for (size_t i = 0; i < num_factors; ++i) {
        const int64_t first_rank = static_cast<int64_t>(i) * rank;
        launch_squares<T>({.w = args.data<const T>(0),
                           .a = args.data<const T>(1) + first_rank * w[1],
                           .b = args.data<const T>(i + 2),
                           .squares = squares,
                           .num_rows = w[0],
                           .width = w[1],
                           .rows = rows[i],
                           .begin = a.begin_of(i),
                           .step = a.step,
                           .rank = static_cast<int>(rank),
                           .scale = static_cast<float>(a.scale)},
                          args.stream);
      }
    }};
  });
}

CudaKernel make_cuda_apply_magnitudes(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<ApplyMagnitudesAttributes>(spec);
  const Shape v = spec.operands[0].shape;
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      launch_apply<T>({.v = args.data<const T>(0),
                       .change = args.data<const T>(1),
                       .squares = args.data<const float>(2),
                       .bias = a.has_bias && a.adds_bias ? args.data<const T>(3) : nullptr,
                       .y = args.data<T>(a.has_bias ? 4 : 3),
                       .rows = v[0],
                       .width = v[1],
                       .chunk_rows = kChunkRows},
                      args.stream);
    }};
  });
}

CudaKernel make_cuda_apply_magnitudes_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const bool accumulate = attributes_of<ApplyMagnitudesBackwardAttributes>(spec).accumulate;
  const Shape v = spec.operands[0].shape;
  const int64_t chunk_rows = ceil_div(v[0], bias_grad_chunks(v[0], v[1]));
  const int64_t chunks = ceil_div(v[0], chunk_rows);
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    const auto launch = [=](const CudaKernelArgs& args) {
      auto* const partials = reinterpret_cast<float*>(args.scratch);
      launch_backward<T>({.v = args.data<const T>(0),
                          .change = args.data<const T>(1),
                          .squares = args.data<const float>(2),
                          .dy = args.data<const T>(3),
                          .dv = args.data<T>(4),
                          .partials = partials,
                          .rows = v[0],
                          .width = v[1],
                          .chunk_rows = chunk_rows},
                         chunks, args.stream);
      launch_column_sums({.partials = partials,
                          .sums = args.data<float>(5),
                          .width = v[1],
                          .num_partials = static_cast<int>(chunks),
                          .accumulate = accumulate},
                         {}, args.stream);
    };
    return {.launch = launch, .scratch_bytes = bias_grad_scratch_bytes(v[0], v[1])};
  });
}

}  // namespace braid
