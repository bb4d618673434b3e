#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2.cuh"

// With u = y SiLU(z) and h = u rstd: v = h w. A block has a run of channels that are normalised
// together, in one row; in the backward in every gridDim.x-th row, with the sums for its columns of
// norm_weight in registers.
namespace braid {
namespace {

constexpr int kVector = 8;
constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;  ///< per thread

using Vector = DeviceVector<Mamba2Data, kVector>;

/// A thread's channels of one row and run.
struct NormPlace {
  int width;         // of a run
  int64_t norm;      // index into rstd
  int64_t at_inner;  // first channel of the run in a row of [T, inner]
  int64_t at_z;      // the same in zxbcdt

  __device__ NormPlace(const Mamba2Sizes& s, int64_t row) : width(s.inner() / s.norm_groups) {
    const auto group = static_cast<int>(blockIdx.y);
    norm = row * s.norm_groups + group;
    at_inner = row * s.inner() + int64_t{group} * width;
    at_z = row * s.row_elems() + int64_t{group} * width;
  }
};

__device__ int column_of(int k) {
  return (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
}

template <bool kAligned, int K>
__device__ void load_run(Vector (&vectors)[K], const Mamba2Data* from, int width) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = column_of(k);
    vectors[k] = Vector{};
    if (c < width) {
      vectors[k] = load_vector<kVector, kAligned>(from + c, width - c);
    }
  }
}

template <bool kAligned, int K>
__device__ void save_run(Mamba2Data* to, const Vector (&vectors)[K], int width) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = column_of(k);
    if (c < width) {
      store_vector<kAligned>(to + c, vectors[k], width - c);
    }
  }
}

template <bool kAligned, int K>
__global__ void __launch_bounds__(kMaxThreads)
    norm_kernel(const __grid_constant__ Mamba2Args args, Mamba2Data* v) {
  __shared__ float shared[kWarpSize];
  const NormPlace place(args.sizes, int64_t{blockIdx.x});
  Vector y[K];
  Vector z[K];
  Vector w[K];
  load_run<kAligned>(y, args.y + place.at_inner, place.width);
  load_run<kAligned>(z, args.zxbcdt + place.at_z, place.width);
  load_run<kAligned>(w, args.norm_weight + int64_t{blockIdx.y} * place.width, place.width);
  float u[K][kVector];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float gate = widen(z[k].elems[i]);
      u[k][i] = widen(y[k].elems[i]) * gate * sigmoid(gate);
      squares += u[k][i] * u[k][i];
    }
  }
  const float mean = block_sum(squares, shared) / static_cast<float>(place.width);
  const float rstd = 1.0f / sqrtf(mean + args.epsilon);
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      y[k].elems[i] = narrow<Mamba2Data>(u[k][i] * rstd * widen(w[k].elems[i]));
    }
  }
  save_run<kAligned>(v + place.at_inner, y, place.width);
  if (threadIdx.x == 0) {
    args.rstd[place.norm] = rstd;
  }
}

/// What the backward reads of a row.
template <bool kAligned, int K>
struct NormRow {
  Vector y[K];
  Vector z[K];
  Vector dv[K];
  float rstd;

  __device__ void load(const Mamba2Args& args, int64_t row) {
    const NormPlace place(args.sizes, row);
    load_run<kAligned>(y, args.y + place.at_inner, place.width);
    load_run<kAligned>(z, args.zxbcdt + place.at_z, place.width);
    load_run<kAligned>(dv, args.dv + place.at_inner, place.width);
    rstd = args.rstd[place.norm];
  }
};

/// `w` are the weights, and `sums` those for their gradients.
template <bool kAligned, int K>
__device__ void norm_backward_row(const Mamba2Args& args, NormRow<kAligned, K> row,
                                  const NormPlace& place, const Vector (&w)[K], float* shared,
                                  float (&sums)[K][kVector]) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float gate = widen(row.z[k].elems[i]);
      const float h = widen(row.y[k].elems[i]) * gate * sigmoid(gate) * row.rstd;
      const float grad = widen(row.dv[k].elems[i]);
      sums[k][i] += grad * h;
      sum += grad * widen(w[k].elems[i]) * h;
    }
  }
  const float mean = block_sum(sum, shared) / static_cast<float>(place.width);
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float gate = widen(row.z[k].elems[i]);
      const float share = sigmoid(gate);
      const float y = widen(row.y[k].elems[i]);
      const float h = y * gate * share * row.rstd;
      const float du = row.rstd * (widen(row.dv[k].elems[i]) * widen(w[k].elems[i]) - h * mean);
      row.y[k].elems[i] = narrow<Mamba2Data>(du * gate * share);
      row.z[k].elems[i] = narrow<Mamba2Data>(du * y * share * (1.0f + gate * (1.0f - share)));
    }
  }
  save_run<kAligned>(args.dy + place.at_inner, row.y, place.width);
  if (args.d_zxbcdt != nullptr) {
    save_run<kAligned>(args.d_zxbcdt + place.at_z, row.z, place.width);
  }
}

/// With two vectors per thread, a multiprocessor has few threads: a row is loaded while the one
/// before is computed. With more, registers do not suffice, with one, there are many threads.
template <bool kAligned, int K>
__global__ void __launch_bounds__(kMaxThreads)
    norm_backward_kernel(const __grid_constant__ Mamba2Args args) {
  __shared__ float shared[2][kWarpSize];  // used alternately: one barrier per row is enough
  const Mamba2Sizes& s = args.sizes;
  const int width = s.inner() / s.norm_groups;
  Vector w[K];
  load_run<kAligned>(w, args.norm_weight + int64_t{blockIdx.y} * width, width);
  float sums[K][kVector] = {};
  int turn = 0;
  constexpr bool kAhead = K == 2;
  NormRow<kAligned, K> next;
  if constexpr (kAhead) {
    next.load(args, blockIdx.x);
  }
  for (int64_t row = blockIdx.x; row < s.tokens; row += gridDim.x) {
    turn ^= 1;
    if constexpr (!kAhead) {
      next.load(args, row);
    }
    const NormRow<kAligned, K> current = next;
    if (kAhead && row + gridDim.x < s.tokens) {
      next.load(args, row + gridDim.x);
    }
    norm_backward_row<kAligned>(args, current, NormPlace(s, row), w, shared[turn], sums);
  }
  if (args.partials == nullptr) {
    return;
  }
  float* const to = args.partials + int64_t{blockIdx.x} * s.inner() + int64_t{blockIdx.y} * width;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (column_of(k) + i < width) {
        to[column_of(k) + i] = sums[k][i];
      }
    }
  }
}

/// Calls launch.template operator()<aligned, vectors per thread>(threads).
void dispatch_norm(const Mamba2Args& args, std::initializer_list<const void*> pointers,
                   const auto& launch) {
  const Mamba2Sizes& s = args.sizes;
  const int width = s.inner() / s.norm_groups;
  const bool aligned =
      width % kVector == 0 && s.row_elems() % kVector == 0 && all_aligned(16, pointers);
  const int64_t needed = ceil_div(width, kVector);
  const auto with_vectors = [&]<int K>() {
    const auto threads = static_cast<unsigned>(ceil_div(needed, K * kWarpSize) * kWarpSize);
    if (aligned) {
      launch.template operator()<true, K>(threads);
    } else {
      launch.template operator()<false, K>(threads);
    }
  };
  if (needed <= kMaxThreads / 2) {
    with_vectors.template operator()<1>();
  } else if (needed <= 2 * kMaxThreads) {
    with_vectors.template operator()<2>();
  } else {
    with_vectors.template operator()<kMaxVectors>();
  }
}

}  // namespace

void launch_mamba2_norm(const Mamba2Args& args, Mamba2Data* v, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_norm(args, {args.zxbcdt, args.y, args.norm_weight, v},
                [&]<bool kAligned, int K>(unsigned threads) {
                  const dim3 grid(grid_of(s.tokens), static_cast<unsigned>(s.norm_groups));
                  norm_kernel<kAligned, K><<<grid, threads, 0, stream>>>(args, v);
                });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch_mamba2_dy(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  const int64_t blocks = mamba2_norm_blocks(s.tokens);
  dispatch_norm(args, {args.zxbcdt, args.y, args.norm_weight, args.dv, args.d_zxbcdt},
                [&]<bool kAligned, int K>(unsigned threads) {
                  const dim3 grid(grid_of(blocks), static_cast<unsigned>(s.norm_groups));
                  norm_backward_kernel<kAligned, K><<<grid, threads, 0, stream>>>(args);
                });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch_mamba2_norm_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                 cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  launch_mamba2_dy(args, stream);
  launch_column_sums({.partials = args.partials,
                      .sums = grads.norm_weight,
                      .width = s.inner(),
                      .num_partials = static_cast<int>(mamba2_norm_blocks(s.tokens)),
                      .accumulate = grads.accumulate},
                     {}, stream);
}

}  // namespace braid
