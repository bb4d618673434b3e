#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_tiles.cuh"

// The gradients of a chunk, for the heads of one block. With S the state before the chunk, G the
// gradient of the state after it, M = C B^T, L_ij the decay from j to i, and, per head,
// K_ij = dy_i x_j and T_ij = L_ij K_ij dt_j for i >= j:
//   v_j  = sum over i of M_ij L_ij dy_i + decay from j to the end, G B_j
//   dx_j = dt_j v_j + skip dy_j                                      d dt_j = x_j v_j, and
//   dB_j = sum over heads of sum over i of T_ij C_i + decay from j to the end, dt_j G^T x_j
//   dC_i = sum over heads of sum over j of T_ij B_j + decay to i, S^T dy_i
//   d (dt A)_j = sum over i >= j > k of M_ik T_ik + sum over k < j of w_k
//                + sum over i >= j of dy_i (decay to i, S C_i) + whole decay, <G, S>
// with w_k = decay from k to the end, dt_k x_k G B_k. The sums of M T are not the differences of
// sums over rows and columns, which would cancel: rows are summed from their end by products with
// triangles of ones, M T as the sum of two bf16, then columns up to j.
//
// Four warps have 16 rows j each, for v, T and what follows from them; four others 16 rows of dB
// and dC, whose part with G and S they add over heads in registers. T is added over heads, too, and
// multiplied with B and C once.
namespace braid {
namespace {

constexpr int kRowWarps = kSsdChunk / 16;
constexpr int kThreads = 2 * kRowWarps * kWarpSize;
constexpr int kColumnTiles = kSsdHeadSize / 8;
constexpr int kChunkTiles = kSsdChunk / 8;
constexpr int kStages = 2;

/// What follows from a head's products, row by row, until a warp adds it up.
struct RowTerms {
  float w[kSsdChunk];
  float from_state[kSsdChunk];  ///< dy_i (decay to i, S C_i)
  float d_dt[kSsdChunk];
  float dy_x[kSsdChunk];
  float triangles[kRowWarps][kSsdChunk];  ///< sums of M T over the rows k of a warp
  float states[kRowWarps];                ///< addends of <G, S>
  float whole_decay;
};

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

/// The loads of a block, head by head.
template <int N>
class HeadWalk {
 public:
  __device__ HeadWalk(const Mamba2Args& args, const ChunkRows& rows, int first_head)
      : rows_(rows.count),
        head_size_(args.sizes.head_size),
        x_(args.xbc + rows.begin * args.sizes.convolved() + first_head * args.sizes.head_size,
           args.sizes.convolved(), args.sizes.head_size, args.sizes.head_size),
        dy_(args.dy + rows.begin * args.sizes.inner() + first_head * args.sizes.head_size,
            args.sizes.inner(), args.sizes.head_size, args.sizes.head_size),
        states_(states_walk(args, args.states, first_head)),
        d_states_(states_walk(args, args.d_states, first_head)),
        steps_(args, rows, first_head) {}

  __device__ void start_next(BackwardShared<N>& shared, int stage) {
    x_.start_next(shared.x[stage], rows_);
    dy_.start_next(shared.dy[stage], rows_);
    states_.start_next(shared.states[stage], head_size_);
    d_states_.start_next(shared.d_states[stage], head_size_);
    steps_.start_next(shared.steps[stage]);
    ptx::end_copy_group();
  }

 private:
  using States = TileWalk<StateTile<N>, kThreads>;

  __device__ static States states_walk(const Mamba2Args& args, const Mamba2Data* states,
                                       int first_head) {
    const Mamba2Sizes& s = args.sizes;
    return {states + (int64_t{blockIdx.x} * s.heads + first_head) * s.state_elems(), s.state,
            s.state, s.state_elems()};
  }

  int rows_;
  int head_size_;
  TileWalk<HeadTile, kThreads> x_;
  TileWalk<HeadTile, kThreads> dy_;
  States states_;
  States d_states_;
  StepWalk steps_;
};

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

/// Ones where depth >= column, in two right factors, columns 0 to 7 and 8 to 15.
__device__ inline RightTiles lower_triangle() {
  RightTiles ones;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int column = 8 * tile + lane_index() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int depth = 8 * half + sum_column();
      ones.of[2 * tile + half] =
          pack_bf16(depth >= column ? 1.0f : 0.0f, depth + 1 >= column ? 1.0f : 0.0f);
    }
  }
  return ones;
}

/// e [16 rows k, 64 columns i], 0 for i < k, -> triangles[j] = sum over this warp's k < j and over
/// i >= j.
__device__ inline void sum_triangles(const SumTile (&e)[kChunkTiles], float* triangles, int row) {
  const RightTiles ones_below = lower_triangle();
  const uint32_t ones = pack_bf16(1.0f, 1.0f);
  float later[2] = {};  // of the columns after those of a tile
#pragma unroll
  for (int begin = kSsdChunk - 16; begin >= 0; begin -= 16) {
    float sums[2][2] = {};  // by tile of 8 columns, by column of this lane
    if (begin >= row) {
      LeftTile high;
      to_left(high, e[begin / 8], e[begin / 8 + 1]);
      LeftTile low;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const SumTile& exact = e[begin / 8 + i / 2];
        const float2 rounded = unpack_bf16(high[i]);
        low[i] = pack_bf16(exact[2 * (i % 2)] - rounded.x, exact[2 * (i % 2) + 1] - rounded.y);
      }
      SumTile from_column[2] = {};
      SumTile all = {};
      add_products(from_column[0], from_column[1], high, ones_below);
      add_products(from_column[0], from_column[1], low, ones_below);
      ptx::multiply_add(all, high, ones, ones);
      ptx::multiply_add(all, low, ones, ones);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = begin + 8 * tile + sum_column() + i % 2;
          const int k = row + sum_row(i / 2);
          sums[tile][i % 2] += k < j ? from_column[tile][i] + later[i / 2] : 0.0f;
        }
      }
      later[0] += all[0];
      later[1] += all[2];
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = column_sum(sums[tile][i]);
        if (lane_index() < 4) {
          triangles[begin + 8 * tile + sum_column() + i] = sum;
        }
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
  SumTile v[kColumnTiles] = {};
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

  SumTile from_state[kColumnTiles] = {};  // G B_j
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
    for (int tile = 0; tile < kColumnTiles; ++tile) {
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

/// Registers of a warp that has rows of dB and dC.
template <int N>
struct FactorSums {
  SumTile b[N / 8] = {};
  SumTile c[N / 8] = {};
};

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
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize - kRowWarps;
  const int thread = warp * kWarpSize + lane_index();
  float sum = 0;
#pragma unroll
  for (int at = kVector * thread; at < kSsdHeadSize * N; at += kVector * kRowWarps * kWarpSize) {
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

/// Writes what a head's rows get, by one warp: a lane has two rows.
__device__ inline void save_terms(const Mamba2Args& args, const ChunkRows& rows, int head,
                                  const RowTerms& terms) {
  const int lane = lane_index();
  float states = 0;
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) {
    states += terms.states[warp];
  }
  states *= ptx::exp2_approx(terms.whole_decay);
  const float w[2] = {terms.w[2 * lane], terms.w[2 * lane + 1]};
  const float y[2] = {terms.from_state[2 * lane], terms.from_state[2 * lane + 1]};
  float until = w[0] + w[1];
  float from = y[0] + y[1];
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, until, distance);
    const float after = __shfl_down_sync(0xffffffffu, from, distance);
    until += lane >= distance ? before : 0.0f;
    from += lane + distance < kWarpSize ? after : 0.0f;
  }
  const float neighbours[2] = {__shfl_up_sync(0xffffffffu, until, 1),
                               __shfl_down_sync(0xffffffffu, from, 1)};
  const float before = lane > 0 ? neighbours[0] : 0.0f;
  const float after = lane + 1 < kWarpSize ? neighbours[1] : 0.0f;
  float decay[2] = {states + before + from, states + before + w[0] + y[1] + after};
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) {
    decay[0] += terms.triangles[warp][2 * lane];
    decay[1] += terms.triangles[warp][2 * lane + 1];
  }
  const int64_t at = head * args.sizes.padded_rows() + rows.padded + 2 * lane;
  reinterpret_cast<float2*>(args.d_decay + at)[0] = {decay[0], decay[1]};
  reinterpret_cast<float2*>(args.d_dt + at)[0] = {terms.d_dt[2 * lane], terms.d_dt[2 * lane + 1]};
  reinterpret_cast<float2*>(args.dy_x + at)[0] = {terms.dy_x[2 * lane], terms.dy_x[2 * lane + 1]};
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
  const Mamba2Sizes& s = args.sizes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + sum_row(half);
    float* const to = args.d_factors + (heads.part * s.tokens + rows.begin + r) * (2 * s.factor()) +
                      heads.group * s.state;
#pragma unroll
    for (int tile = 0; tile < N / 8; ++tile) {
      const int n = 8 * tile + sum_column();
      if (r < rows.count && n < s.state) {
        *reinterpret_cast<float2*>(to + n) = {sums.b[tile][2 * half], sums.b[tile][2 * half + 1]};
        *reinterpret_cast<float2*>(to + s.factor() + n) = {sums.c[tile][2 * half],
                                                           sums.c[tile][2 * half + 1]};
      }
    }
  }
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
  shared.b.template start_load<kThreads>(factors, s.convolved(), rows.count, s.state);
  shared.c.template start_load<kThreads>(factors + s.factor(), s.convolved(), rows.count, s.state);
  HeadWalk<N> walk(args, rows, heads.first);
  walk.start_next(shared, 0);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = warp % kRowWarps * 16;
  if (warp < kRowWarps) {
    RowSums sums;
    for_each_head<N>(args, shared, walk, rows, heads, [&](int stage, int head, RowTerms& terms) {
      if (head == heads.first) {
        multiply_rows<N>(sums.m, shared.b, shared.c, row, row);
      }
      compute_rows<N>(shared, sums, terms, row, stage, widen(args.skip[head]));
      save_rows<kSsdHeadSize>(args.dx + rows.begin * s.inner() + head * s.head_size, s.inner(),
                              shared.dx, row, 0, rows.count, s.head_size, true);
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
