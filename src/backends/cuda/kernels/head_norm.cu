#include "ops/head_norm.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"

// A run of a row that is normalised together, or copied, belongs to a team of threads: a head to a
// warp, or all heads of one kind to a block. The run is in registers, so memory is read and written
// once. In the backward a team keeps its columns of the weights' gradients in registers over all
// runs that it meets; the sums of a block's warps are added in order, and a second pass adds those
// of the blocks in order. The division into blocks depends on the shape only: bitwise repeatable on
// any device.
namespace braid {
namespace {

constexpr int kVector = 4;  ///< elements: a warp has a head of 128 at once
constexpr int kWarpsPerBlock = 8;
constexpr int kMaxVectors = 4;    ///< per thread
constexpr int kMaxThreads = 512;  ///< of a block that takes all heads of a kind
constexpr int kKinds = 3;         ///< queries, keys, values

/// Pointers are null if a kernel lacks the operand.
template <class T>
struct HeadNormArgs {
  const T* qkv = nullptr;    // [N, row]
  const T* weights[2] = {};  // of queries and of keys
  const T* dy = nullptr;     // [N, row]
  T* out = nullptr;          // y or d_qkv [N, row]
  float* rstd = nullptr;     // f32 [N, runs that are normalised]
  float* partials[2] = {};   // f32 [blocks, width of a weight]
  int64_t rows = 0;
  int64_t row = 0;            // elements
  int begins[kKinds] = {};    // of the runs of each kind, in a row
  int num_runs[kKinds] = {};  // of each kind
  int widths[kKinds] = {};    // of a run of each kind
  float epsilon = 0;
  float offset = 0;  // of weights

  __host__ __device__ int num_normed() const { return num_runs[0] + num_runs[1]; }
};

/// One run of a row.
struct Run {
  int kind = 0;
  int width = 0;
  int64_t at = 0;    // first element
  int64_t norm = 0;  // index into rstd
};

template <class T>
__device__ Run run_of(const HeadNormArgs<T>& args, int64_t row, int index) {
  const int kind = index < args.num_runs[0] ? 0 : index < args.num_normed() ? 1 : 2;
  const int in_kind = index - (kind == 0 ? 0 : kind == 1 ? args.num_runs[0] : args.num_normed());
  return {kind, args.widths[kind],
          row * args.row + args.begins[kind] + int64_t{in_kind} * args.widths[kind],
          row * args.num_normed() + index};
}

/// The threads of a team, and sums over them.
struct WarpTeam {
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kWarpSize; }
  __device__ static int size() { return kWarpSize; }
  __device__ float sum(float value) { return warp_sum(value); }
};

struct BlockTeam {
  float (*shared)[kWarpSize];  ///< two, used alternately, so that one barrier per sum is enough
  int turn = 0;

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int size() { return static_cast<int>(blockDim.x); }
  __device__ float sum(float value) {
    turn ^= 1;
    return block_sum(value, shared[turn]);
  }
};

template <class Team>
__device__ int column_of(int k) {
  return (k * Team::size() + Team::thread()) * kVector;
}

/// The vectors of a run that belong to this thread, and 0 beyond the run.
template <class T, int K>
struct RunVectors {
  DeviceVector<T, kVector> vectors[K];

  template <class Team, bool kAligned>
  __device__ void load(const T* from, int width) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = column_of<Team>(k);
      vectors[k] = c < width ? load_vector<kVector, kAligned>(from + c, width - c)
                             : DeviceVector<T, kVector>{};
    }
  }
  template <class Team, bool kAligned>
  __device__ void save(T* to, int width) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = column_of<Team>(k);
      if (c < width) {
        store_vector<kAligned>(to + c, vectors[k], width - c);
      }
    }
  }
  __device__ float at(int k, int i) const {
    return widen(vectors[k].elems[i]);
  }
};

template <class Team, bool kAligned, int K, class T>
__device__ void norm_run(const HeadNormArgs<T>& args, const Run& run, Team& team) {
  RunVectors<T, K> x;
  x.template load<Team, kAligned>(args.qkv + run.at, run.width);
  if (run.kind < 2) {
    RunVectors<T, K> w;
    w.template load<Team, kAligned>(args.weights[run.kind], run.width);
    float squares = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        squares += x.at(k, i) * x.at(k, i);
      }
    }
    squares = team.sum(squares);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(run.width) + args.epsilon);
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        x.vectors[k].elems[i] = narrow<T>(x.at(k, i) * rstd * (w.at(k, i) + args.offset));
      }
    }
    if (Team::thread() == 0) {
      args.rstd[run.norm] = rstd;
    }
  }
  x.template save<Team, kAligned>(args.out + run.at, run.width);
}

template <int K>
struct WeightSums {
  float of[K][kVector] = {};
};

/// Adds to `sums` the run's part of the gradient of its weight.
template <class Team, bool kAligned, int K, class T>
__device__ void backward_run(const HeadNormArgs<T>& args, const Run& run, Team& team,
                             WeightSums<K>& sums) {
  RunVectors<T, K> dy;
  dy.template load<Team, kAligned>(args.dy + run.at, run.width);
  if (run.kind < 2) {
    RunVectors<T, K> x;
    RunVectors<T, K> w;
    x.template load<Team, kAligned>(args.qkv + run.at, run.width);
    w.template load<Team, kAligned>(args.weights[run.kind], run.width);
    const float rstd = args.rstd[run.norm];
    float sum_gh = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float h = x.at(k, i) * rstd;
        sum_gh += dy.at(k, i) * (w.at(k, i) + args.offset) * h;
        sums.of[k][i] += dy.at(k, i) * h;
      }
    }
    const float mean_gh = team.sum(sum_gh) / static_cast<float>(run.width);
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float g = dy.at(k, i) * (w.at(k, i) + args.offset);
        dy.vectors[k].elems[i] = narrow<T>(rstd * (g - x.at(k, i) * rstd * mean_gh));
      }
    }
  }
  dy.template save<Team, kAligned>(args.out + run.at, run.width);
}

// Heads: warps of a block take one head each.

template <bool kAligned, int K, class T>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize)
    heads_kernel(const __grid_constant__ HeadNormArgs<T> args) {
  const int runs = args.num_normed() + args.num_runs[2];
  const int64_t at =
      int64_t{blockIdx.x} * kWarpsPerBlock + static_cast<int>(threadIdx.x) / kWarpSize;
  if (at < args.rows * runs) {
    const int64_t row = at / runs;
    WarpTeam team;
    norm_run<WarpTeam, kAligned, K>(args, run_of(args, row, static_cast<int>(at - row * runs)),
                                    team);
  }
}

/// Writes the block's sums: those of its warps, in order.
template <int K, class T>
__device__ void save_sums(const HeadNormArgs<T>& args, int kind, const WeightSums<K>& sums,
                          float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  constexpr int kColumns = K * kVector * kWarpSize;
  __syncthreads();  // the sums of another kind have been read
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      shared[warp * kColumns + column_of<WarpTeam>(k) + i] = sums.of[k][i];
    }
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < args.widths[kind];
       c += kWarpsPerBlock * kWarpSize) {
    float sum = 0;
    for (int w = 0; w < kWarpsPerBlock; ++w) {
      sum += shared[w * kColumns + c];
    }
    args.partials[kind][int64_t{blockIdx.x} * args.widths[kind] + c] = sum;
  }
}

template <bool kAligned, int K, class T>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize)
    heads_backward_kernel(const __grid_constant__ HeadNormArgs<T> args) {
  __shared__ float shared[kWarpsPerBlock * K * kVector * kWarpSize];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  WarpTeam team;
  WeightSums<K> of_queries;
  WeightSums<K> of_keys;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    int index = warp;
    for (; index < args.num_runs[0]; index += kWarpsPerBlock) {
      backward_run<WarpTeam, kAligned>(args, run_of(args, row, index), team, of_queries);
    }
    for (; index < args.num_normed() + args.num_runs[2]; index += kWarpsPerBlock) {
      backward_run<WarpTeam, kAligned>(args, run_of(args, row, index), team, of_keys);
    }
  }
  save_sums(args, 0, of_queries, shared);
  save_sums(args, 1, of_keys, shared);
}

// Whole: blocks take all heads of the kind blockIdx.y.

template <bool kAligned, int K, class T>
__global__ void __launch_bounds__(kMaxThreads)
    whole_kernel(const __grid_constant__ HeadNormArgs<T> args) {
  __shared__ float shared[2][kWarpSize];
  BlockTeam team{shared};
  norm_run<BlockTeam, kAligned, K>(
      args, run_of(args, int64_t{blockIdx.x}, static_cast<int>(blockIdx.y)), team);
}

template <bool kAligned, int K, class T>
__global__ void __launch_bounds__(kMaxThreads)
    whole_backward_kernel(const __grid_constant__ HeadNormArgs<T> args) {
  __shared__ float shared[2][kWarpSize];
  BlockTeam team{shared};
  WeightSums<K> sums;
  const int kind = static_cast<int>(blockIdx.y);
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    backward_run<BlockTeam, kAligned>(args, run_of(args, row, kind), team, sums);
  }
  if (kind == 2) {
    return;
  }
  float* const partials = args.partials[kind] + int64_t{blockIdx.x} * args.widths[kind];
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (column_of<BlockTeam>(k) + i < args.widths[kind]) {
        partials[column_of<BlockTeam>(k) + i] = sums.of[k][i];
      }
    }
  }
}

/// How runs are divided among threads.
struct HeadNormLaunch {
  bool whole = false;
  int vectors = 1;  ///< per thread
  unsigned threads = kWarpsPerBlock * kWarpSize;

  template <class T>
  HeadNormLaunch(const HeadNormArgs<T>& args, bool is_whole, const OpSpec& spec) : whole(is_whole) {
    const int64_t widest = std::max({args.widths[0], args.widths[1], args.widths[2]});
    const int64_t limit = int64_t{kMaxVectors} * kVector * (whole ? kMaxThreads : kWarpSize);
    check(widest <= limit, "op {}: {} elements are normalised together; its kernel holds up to {}",
          spec.op, widest, limit);
    const int64_t needed = ceil_div(widest, kVector);
    const int64_t team = whole ? 128 : kWarpSize;  // barriers of small blocks are cheap
    vectors = needed <= team ? 1 : needed <= 2 * team ? 2 : kMaxVectors;
    if (whole) {
      threads = static_cast<unsigned>(ceil_div(needed, int64_t{vectors} * kWarpSize) * kWarpSize);
    }
  }
};

template <class T, class Attributes>
HeadNormArgs<T> head_norm_args(const OpSpec& spec, const Attributes& attributes) {
  const int64_t counts[kKinds] = {attributes.heads, attributes.kv_heads, attributes.kv_heads};
  HeadNormArgs<T> args;
  args.rows = spec.operands[0].shape[0];
  args.row = spec.operands[0].shape[1];
  args.offset = static_cast<float>(attributes.offset.weight_offset);
  int begin = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto elems = static_cast<int>(counts[kind] * attributes.head_size);
    args.begins[kind] = begin;
    args.num_runs[kind] = attributes.whole ? 1 : static_cast<int>(counts[kind]);
    args.widths[kind] = elems / args.num_runs[kind];
    begin += elems;
  }
  return args;
}

/// Whether every run and every vector of it is aligned.
template <class T>
bool is_aligned(const HeadNormArgs<T>& args) {
  bool widths = args.row % kVector == 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    widths = widths && args.begins[kind] % kVector == 0 && args.widths[kind] % kVector == 0;
  }
  return widths && all_aligned(kVector * sizeof(T),
                               {args.qkv, args.weights[0], args.weights[1], args.dy, args.out});
}

/// Calls launch.template operator()<aligned, vectors per thread>().
template <class T, class Launch>
void dispatch_vectors(const HeadNormArgs<T>& args, const HeadNormLaunch& how,
                      const Launch& launch) {
  const auto with_vectors = [&]<bool kAligned>() {
    if (how.vectors == 1) {
      launch.template operator()<kAligned, 1>();
    } else if (how.vectors == 2) {
      launch.template operator()<kAligned, 2>();
    } else {
      launch.template operator()<kAligned, kMaxVectors>();
    }
  };
  if (is_aligned(args)) {
    with_vectors.template operator()<true>();
  } else {
    with_vectors.template operator()<false>();
  }
}

template <class T>
void launch_forward(const HeadNormArgs<T>& args, const HeadNormLaunch& how, cudaStream_t stream) {
  dispatch_vectors(args, how, [&]<bool kAligned, int K>() {
    if (how.whole) {
      whole_kernel<kAligned, K><<<dim3(grid_of(args.rows), kKinds), how.threads, 0, stream>>>(args);
    } else {
      const int64_t runs = args.rows * (args.num_normed() + args.num_runs[2]);
      heads_kernel<kAligned, K>
          <<<grid_of(ceil_div(runs, kWarpsPerBlock)), how.threads, 0, stream>>>(args);
    }
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void launch_backward(const HeadNormArgs<T>& args, const HeadNormLaunch& how, cudaStream_t stream) {
  const unsigned blocks = grid_of(head_norm_blocks(args.rows));
  dispatch_vectors(args, how, [&]<bool kAligned, int K>() {
    if (how.whole) {
      whole_backward_kernel<kAligned, K><<<dim3(blocks, kKinds), how.threads, 0, stream>>>(args);
    } else {
      heads_backward_kernel<kAligned, K><<<blocks, how.threads, 0, stream>>>(args);
    }
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T>
CudaKernel forward_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<HeadNormAttributes>(spec);
  auto shape = head_norm_args<T>(spec, attributes);
  shape.epsilon = static_cast<float>(attributes.epsilon);
  const HeadNormLaunch how(shape, attributes.whole, spec);
  return {.launch = [shape, how](const CudaKernelArgs& args) {
    HeadNormArgs<T> o = shape;
    o.qkv = args.data<const T>(0);
    o.weights[0] = args.data<const T>(1);
    o.weights[1] = args.data<const T>(2);
    o.out = args.data<T>(3);
    o.rstd = args.data<float>(4);
    launch_forward(o, how, args.stream);
  }};
}

template <class T>
CudaKernel backward_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<HeadNormBackwardAttributes>(spec);
  const auto shape = head_norm_args<T>(spec, attributes);
  const HeadNormLaunch how(shape, attributes.whole, spec);
  const size_t bytes[] = {head_norm_partial_bytes(shape.rows, shape.widths[0]),
                          head_norm_partial_bytes(shape.rows, shape.widths[1])};
  return {.launch =
              [=, query_bytes = bytes[0],
               accumulate = attributes.accumulate](const CudaKernelArgs& args) {
                HeadNormArgs<T> o = shape;
                o.qkv = args.data<const T>(0);
                o.weights[0] = args.data<const T>(1);
                o.weights[1] = args.data<const T>(2);
                o.rstd = args.data<float>(3);
                o.dy = args.data<const T>(4);
                o.out = args.data<T>(5);
                o.partials[0] = reinterpret_cast<float*>(args.scratch);
                o.partials[1] = reinterpret_cast<float*>(args.scratch + query_bytes);
                launch_backward(o, how, args.stream);
                for (const size_t kind : {0, 1}) {
                  launch_column_sums({.partials = o.partials[kind],
                                      .sums = args.data<float>(6 + kind),
                                      .width = o.widths[kind],
                                      .num_partials = static_cast<int>(head_norm_blocks(o.rows)),
                                      .accumulate = accumulate},
                                     {}, args.stream);
                }
              },
          .scratch_bytes = bytes[0] + bytes[1]};
}

}  // namespace

CudaKernel make_cuda_head_norm(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() { return forward_kernel<T>(spec); });
}

CudaKernel make_cuda_head_norm_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() { return backward_kernel<T>(spec); });
}

}  // namespace braid
