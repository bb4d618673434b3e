#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_chunks_backward.cuh"

// For GPUs other than Hopper's. Four warps have 16 rows j each, for v, T and what follows from
// them; four others 16 rows of dB and dC, whose part with G and S they add over heads in registers.
// T is added over heads, too, and multiplied with B and C once.
namespace braid {
namespace {

constexpr int kThreads = 2 * kChunkWarps * kWarpSize;
constexpr int kStages = 2;

template <int N>
struct BackwardShared {
  FactorTile<N> b;
  FactorTile<N> c;
  HeadTile x[kStages];
  HeadTile dy[kStages];
  StateTile<N> states[kStages];
  StateTile<N> d_states[kStages];
  StepTile steps[kStages];
  RowTerms terms[kStages];
  HeadTile dx;
  SharedTile<kSsdChunk, kSsdChunk> t;  ///< the sum of T over heads, [j][i]
};

template <int N>
using HeadWalk = HeadGradsWalk<HeadTile, StateTile<N>, kThreads>;

/// Registers of a warp that has rows j.
struct RowSums {
  SumTile m[kChunkTiles] = {};  ///< M, [j][i]
  SumTile t[kChunkTiles] = {};  ///< T, added over heads
};

/// products [16, 64] += rows of `left` with rows of `right` from column `first_row` on.
template <int kDepth, class Left, class Right>
__device__ void multiply_rows(SumTile (&products)[kChunkTiles], Left& left, Right& right, int row,
                              int first_row) {
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    LeftTile factor;
    load_left(factor, left.at(row, depth), Left::kStride);
#pragma unroll
    for (int i = 0; i < kSsdChunk; i += 16) {
      if (i >= first_row) {
        add_products(products[i / 8], products[i / 8 + 1], factor,
                     load_right(right.at(i, depth), Right::kStride));
      }
    }
  }
}

/// The part of a head that belongs to rows j.
template <int N>
__device__ void compute_rows(BackwardShared<N>& shared, RowSums& sums, RowTerms& terms, int row,
                             int stage, float skip) {
  const StepTile& steps = shared.steps[stage];
  SumTile products[kChunkTiles] = {};  // K, [j][i]; then M T
  multiply_rows<kSsdHeadSize>(products, shared.x[stage], shared.dy[stage], row, row);
  SumTile v[kHeadTiles] = {};
#pragma unroll
  for (int begin = 0; begin < kSsdChunk; begin += 16) {
    if (begin < row) {
      continue;
    }
    SumTile weights[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int j = row + sum_row(at / 2);
        const int i = begin + 8 * tile + sum_column() + at % 2;
        const float decay = steps.between(j, i);
        const float m = sums.m[begin / 8 + tile][at];
        float& product = products[begin / 8 + tile][at];
        const float t = decay * product * steps.dt[j];
        weights[tile][at] = m * decay;
        sums.t[begin / 8 + tile][at] += t;
        product = m * t;
      }
    }
    LeftTile left;
    to_left(left, weights[0], weights[1]);
#pragma unroll
    for (int p = 0; p < kSsdHeadSize; p += 16) {
      add_products(v[p / 8], v[p / 8 + 1], left,
                   load_right_transposed(shared.dy[stage].at(begin, p), HeadTile::kStride));
    }
  }
  sum_triangles(products, terms.triangles[row / 16], row);

  SumTile from_state[kHeadTiles] = {};  // G B_j
#pragma unroll
  for (int depth = 0; depth < N; depth += 16) {
    LeftTile left;
    load_left(left, shared.b.at(row, depth), FactorTile<N>::kStride);
#pragma unroll
    for (int p = 0; p < kSsdHeadSize; p += 16) {
      add_products(from_state[p / 8], from_state[p / 8 + 1], left,
                   load_right(shared.d_states[stage].at(p, depth), StateTile<N>::kStride));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = row + sum_row(half);
    const float to_end = steps.to_end(j);
    const float dt = steps.dt[j];
    float w = 0;
    float d_dt = 0;
    float dy_x = 0;
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
      const int p = 8 * tile + sum_column();
      const float2 x_pair = load_pair(shared.x[stage].at(j, p));
      const float2 dy_pair = load_pair(shared.dy[stage].at(j, p));
      const float first_state = from_state[tile][2 * half] * to_end;
      const float second_state = from_state[tile][2 * half + 1] * to_end;
      const float first = v[tile][2 * half] + first_state;
      const float second = v[tile][2 * half + 1] + second_state;
      w += x_pair.x * first_state + x_pair.y * second_state;
      d_dt += x_pair.x * first + x_pair.y * second;
      dy_x += x_pair.x * dy_pair.x + x_pair.y * dy_pair.y;
      *reinterpret_cast<uint32_t*>(shared.dx.at(j, p)) =
          pack_bf16(dt * first + skip * dy_pair.x, dt * second + skip * dy_pair.y);
    }
    w = row_sum(w);
    d_dt = row_sum(d_dt);
    dy_x = row_sum(dy_x);
    if (lane_index() % 4 == 0) {
      terms.w[j] = dt * w;
      terms.d_dt[j] = d_dt;
      terms.dy_x[j] = dy_x;
    }
  }
}

/// The part of a head with G and S.
template <int N>
__device__ void compute_factors(BackwardShared<N>& shared, FactorSums<N>& sums, RowTerms& terms,
                                int row, int stage) {
  constexpr int kDepths = kSsdHeadSize / 16;
  const StepTile& steps = shared.steps[stage];
  const int rows[2] = {row + sum_row(0), row + sum_row(1)};
  LeftTile x[kDepths];
  LeftTile dy[kDepths];
#pragma unroll
  for (int depth = 0; depth < kDepths; ++depth) {
    load_left(x[depth], shared.x[stage].at(row, 16 * depth), HeadTile::kStride);
    scale_rows(x[depth], steps.to_end(rows[0]) * steps.dt[rows[0]],
               steps.to_end(rows[1]) * steps.dt[rows[1]]);
    load_left(dy[depth], shared.dy[stage].at(row, 16 * depth), HeadTile::kStride);
    scale_rows(dy[depth], steps.from_begin(rows[0]), steps.from_begin(rows[1]));
  }
  float from_state[2] = {};
#pragma unroll
  for (int n = 0; n < N; n += 16) {
    SumTile of_head[2] = {};
#pragma unroll
    for (int depth = 0; depth < kDepths; ++depth) {
      add_products(
          sums.b[n / 8], sums.b[n / 8 + 1], x[depth],
          load_right_transposed(shared.d_states[stage].at(16 * depth, n), StateTile<N>::kStride));
      add_products(
          of_head[0], of_head[1], dy[depth],
          load_right_transposed(shared.states[stage].at(16 * depth, n), StateTile<N>::kStride));
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 c = load_pair(shared.c.at(rows[half], n + 8 * tile + sum_column()));
        from_state[half] += of_head[tile][2 * half] * c.x + of_head[tile][2 * half + 1] * c.y;
        sums.c[n / 8 + tile][2 * half] += of_head[tile][2 * half];
        sums.c[n / 8 + tile][2 * half + 1] += of_head[tile][2 * half + 1];
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = row_sum(from_state[half]);
    if (lane_index() % 4 == 0) {
      terms.from_state[rows[half]] = sum;
    }
  }
}

/// This warp's addend of <G, S>; the other warps have more to do.
template <int N>
__device__ void multiply_states(BackwardShared<N>& shared, RowTerms& terms, int stage) {
  constexpr int kVector = 8;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize - kChunkWarps;
  const int thread = warp * kWarpSize + lane_index();
  float sum = 0;
#pragma unroll
  for (int at = kVector * thread; at < kSsdHeadSize * N; at += kVector * kChunkWarps * kWarpSize) {
    const auto s = load_vector<kVector, true>(shared.states[stage].at(at / N, at % N), kVector);
    const auto g = load_vector<kVector, true>(shared.d_states[stage].at(at / N, at % N), kVector);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum += widen(s.elems[i]) * widen(g.elems[i]);
    }
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) {
    terms.states[warp] = sum;
  }
}

/// T of 16 rows j, rounded, to shared memory; 0 for columns before the warp's rows.
template <int N>
__device__ void save_t(BackwardShared<N>& shared, const RowSums& sums, int row) {
#pragma unroll
  for (int tile = 0; tile < kChunkTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint32_t*>(shared.t.at(row + sum_row(half), 8 * tile + sum_column())) =
          pack_bf16(sums.t[tile][2 * half], sums.t[tile][2 * half + 1]);
    }
  }
}

/// Adds T C to dB and T^T B to dC, then writes both.
template <int N>
__device__ void finish_factors(const Mamba2Args& args, BackwardShared<N>& shared,
                               FactorSums<N>& sums, const ChunkRows& rows, const BlockHeads& heads,
                               int row) {
  using T = SharedTile<kSsdChunk, kSsdChunk>;
#pragma unroll
  for (int depth = 0; depth < kSsdChunk; depth += 16) {
    LeftTile of_b;
    LeftTile of_c;
    load_left(of_b, shared.t.at(row, depth), T::kStride);
    load_left_transposed(of_c, shared.t.at(depth, row), T::kStride);
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      add_products(sums.b[n / 8], sums.b[n / 8 + 1], of_b,
                   load_right_transposed(shared.c.at(depth, n), FactorTile<N>::kStride));
      add_products(sums.c[n / 8], sums.c[n / 8 + 1], of_c,
                   load_right_transposed(shared.b.at(depth, n), FactorTile<N>::kStride));
    }
  }
  sums.save(args, rows, heads, row);
}

/// Runs `of_head(stage, head, terms)` for one head after the other, once its tiles have arrived;
/// warp 0 writes the terms of a head while the others begin with the next.
template <int N>
__device__ void for_each_head(const Mamba2Args& args, BackwardShared<N>& shared, HeadWalk<N>& walk,
                              const ChunkRows& rows, const BlockHeads& heads, const auto& of_head) {
  const auto save_terms_before = [&](int h) {
    if (h > 0 && threadIdx.x < kWarpSize) {
      save_terms(args, rows, heads.first + h - 1, shared.terms[(h - 1) % kStages]);
    }
  };
  for (int h = 0; h < heads.count; ++h) {
    const int stage = h % kStages;
    ptx::wait_for_copies<0>();
    __syncthreads();  // the tiles are here, and the head before is done
    if (h + 1 < heads.count) {
      walk.start_next(shared, (h + 1) % kStages);
    }
    save_terms_before(h);
    RowTerms& terms = shared.terms[stage];
    if (threadIdx.x == 0) {
      terms.whole_decay = shared.steps[stage].whole();
    }
    of_head(stage, heads.first + h, terms);
  }
  __syncthreads();
  save_terms_before(heads.count);
}

template <int N>
__global__ void __launch_bounds__(kThreads, 1)
    chunks_backward_kernel(const __grid_constant__ Mamba2Args args) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<BackwardShared<N>*>(memory);
  const Mamba2Sizes& s = args.sizes;
  const ChunkRows rows(s, static_cast<int>(blockIdx.x));
  const BlockHeads heads(s);
  const Mamba2Data* const factors =
      args.xbc + rows.begin * s.convolved() + factor_column(s, heads.group);
  start_load<kThreads>(shared.b, factors, s.convolved(), rows.count, s.state);
  start_load<kThreads>(shared.c, factors + s.factor(), s.convolved(), rows.count, s.state);
  HeadWalk<N> walk(args, rows, heads.first);
  walk.start_next(shared, 0);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = warp % kChunkWarps * 16;
  if (warp < kChunkWarps) {
    RowSums sums;
    const RowWriter<kSsdHeadSize> writer(
        args.dx + rows.begin * s.inner() + heads.first * s.head_size, s.inner(), row, 0,
        s.head_size, true);
    for_each_head<N>(args, shared, walk, rows, heads, [&](int stage, int head, RowTerms& terms) {
      if (head == heads.first) {
        multiply_rows<N>(sums.m, shared.b, shared.c, row, row);
      }
      compute_rows<N>(shared, sums, terms, row, stage, widen(args.skip[head]));
      writer.save(shared.dx, int64_t{head - heads.first} * s.head_size, rows.count);
    });
    save_t<N>(shared, sums, row);
    __syncthreads();
  } else {
    FactorSums<N> sums;
    for_each_head<N>(args, shared, walk, rows, heads,
                     [&](int stage, int /*head*/, RowTerms& terms) {
                       multiply_states<N>(shared, terms, stage);
                       compute_factors<N>(shared, sums, terms, row, stage);
                     });
    __syncthreads();
    finish_factors<N>(args, shared, sums, rows, heads, row);
  }
}

}  // namespace

void launch_mamba2_chunks_backward(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_state(s, [&]<int N>() {
    const auto kernel = chunks_backward_kernel<N>;
    allow_shared<BackwardShared<N>>(kernel);
    kernel<<<dim3(static_cast<unsigned>(s.chunks()), static_cast<unsigned>(s.groups * s.parts())),
             kThreads, sizeof(BackwardShared<N>), stream>>>(args);
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
