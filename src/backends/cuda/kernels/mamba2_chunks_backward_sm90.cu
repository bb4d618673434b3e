#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_chunks_backward.cuh"
#include "backends/cuda/kernels/mamba2_tiles_sm90.cuh"

// For Hopper. One warpgroup adds dB and dC, that is their part with G and S, over heads in
// registers, and brings the tiles of the heads. Two others take turns at the heads: theirs are rows
// j, for v, T and what follows from them; T is added over heads, too, and multiplied with B and C
// once.
namespace braid {
namespace {

constexpr int kRowGroups = 2;  ///< warpgroups that have rows j
constexpr int kThreads = (1 + kRowGroups) * kWarpgroup;
constexpr int kHeadDepths = kSsdHeadSize / 16;
constexpr int kStages = 3;
// Registers of a thread, of the multiprocessor's 65,536.
constexpr int kRowRegisters = 144;
constexpr int kFactorRegisters = 216;

/// Barriers of some threads of a block, by their numbers; 0 is that of all.
enum Barrier { kFactors = 1, kRows = 2, kTilesAreHere = 3, kHeadIsDone = 5 };

template <int N>
struct BackwardShared {
  FactorPanels<N> b;
  FactorPanels<N> c;
  RowTile x[kStages];
  RowTile dy[kStages];
  StatePanels<N> states[kStages];
  StatePanels<N> d_states[kStages];
  float4 products[kChunkTiles * kWarpgroup];  ///< M, [j][i] (OwnSums); then a sum of T
  HeadTile dx[kRowGroups];                    ///< then the first is the sum of T over heads, [j][i]
  StepTile steps[kStages];
  RowTerms terms[kStages];
};

template <int N>
using HeadWalk = HeadGradsWalk<RowTile, StatePanels<N>, kWarpgroup>;

/// Of a product [64, 64], this lane's element of the diagonal, if it has one of a tile with the
/// warp's `row`.
class Diagonal {
 public:
  __device__ explicit Diagonal(int row) : row_(row), index_(lane_index() / 4) {}

  __device__ bool is_here() const { return sum_column() == index_ / 2 * 2; }
  __device__ bool has(int tile) const { return tile / 2 * 16 == row_; }
  __device__ float of(const SumTile& sums, int tile) const {
    const float* const pair = sums + 2 * (tile % 2);
    return index_ % 2 == 0 ? pair[0] : pair[1];
  }
  /// Its place in the diagonal.
  __device__ int place(int tile) const { return 8 * tile + index_; }

 private:
  int row_;
  int index_;
};

/// Scales G B_j by the decay to the end, and returns the sums of its products with x.
__device__ inline float2 weigh_from_state(SumTile (&v)[kHeadTiles], const RowTile& x,
                                          const StepTile& steps, int row) {
  float sums[2] = {};
  const PairsOfRow pairs(x, row);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float to_end = steps.to_end(row + sum_row(half));
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
      const float2 x_pair = pairs.load(tile, half);
      float* const elems = v[tile] + 2 * half;
      elems[0] *= to_end;
      elems[1] *= to_end;
      sums[half] += x_pair.x * elems[0] + x_pair.y * elems[1];
    }
  }
  return {row_sum(sums[0]), row_sum(sums[1])};
}

/// From K: the factors M L of dy, rounded; T, which is added to `t`; and M T, which replaces K.
/// Returns the sums of M L K.
__device__ inline float2 weigh_products(LeftTile (&weights)[kChunkDepths],
                                        SumTile (&t)[kChunkTiles], SumTile (&products)[kChunkTiles],
                                        const OwnSums& m, const StepTile& steps, int row) {
  float sums[2] = {};
#pragma unroll
  for (int begin = 0; begin < kSsdChunk; begin += 16) {
    if (begin < row) {
      continue;
    }
#pragma unroll
    for (int tile = begin / 8; tile < begin / 8 + 2; ++tile) {
      const float4 m_tile = m[tile];
      const float m_elems[4] = {m_tile.x, m_tile.y, m_tile.z, m_tile.w};
      const int i = 8 * tile + sum_column();
      const float2 decay_i = *reinterpret_cast<const float2*>(steps.decay + i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = row + sum_row(half);
        const float decay_j = steps.decay[j];
        const float dt = steps.dt[j];
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool counts = begin > row || i + e >= j;
          const float decay =
              counts ? ptx::exp2_approx((e == 0 ? decay_i.x : decay_i.y) - decay_j) : 0.0f;
          float& product = products[tile][2 * half + e];
          pair[e] = m_elems[2 * half + e] * decay;
          t[tile][2 * half + e] += decay * product * dt;
          const float weighed = pair[e] * product;
          sums[half] += weighed;
          product = weighed * dt;
        }
        weights[tile / 2][tile % 2 * 2 + half] = pack_bf16(pair[0], pair[1]);
      }
    }
  }
  return {row_sum(sums[0]), row_sum(sums[1])};
}

/// Of K: dy_j x_j.
__device__ inline void save_dy_x(RowTerms& terms, const SumTile (&products)[kChunkTiles], int row) {
  const Diagonal diagonal(row);
  if (diagonal.is_here()) {
#pragma unroll
    for (int tile = 0; tile < kChunkTiles; ++tile) {
      if (diagonal.has(tile)) {
        terms.dy_x[diagonal.place(tile)] = diagonal.of(products[tile], tile);
      }
    }
  }
}

/// From the sums of M L K, `direct`, and of the products with the state.
__device__ inline void save_steps(RowTerms& terms, const StepTile& steps, float2 direct,
                                  float2 from_state, int row) {
  if (lane_index() % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = row + sum_row(half);
      const float w = half == 0 ? from_state.x : from_state.y;
      terms.w[j] = steps.dt[j] * w;
      terms.d_dt[j] = w + (half == 0 ? direct.x : direct.y);
    }
  }
}

/// dt_j v_j + skip dy_j, rounded.
__device__ inline void round_rows(HeadTile& dx, const SumTile (&v)[kHeadTiles], const RowTile& dy,
                                  const StepTile& steps, float skip, int row) {
  const PairsOfRow pairs(dy, row);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = row + sum_row(half);
    const float dt = steps.dt[j];
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
      const int p = 8 * tile + sum_column();
      const float2 dy_pair = pairs.load(tile, half);
      *reinterpret_cast<uint32_t*>(dx.at(j, p)) = pack_bf16(
          dt * v[tile][2 * half] + skip * dy_pair.x, dt * v[tile][2 * half + 1] + skip * dy_pair.y);
    }
  }
}

/// The part of a head that belongs to rows j; `t` are this warp's sums of T.
template <int N>
__device__ void compute_rows(BackwardShared<N>& shared, SumTile (&t)[kChunkTiles], RowTerms& terms,
                             HeadTile& dx, int row, int stage, float skip) {
  const StepTile& steps = shared.steps[stage];
  const RowTile& dy = shared.dy[stage];
  SumTile products[kChunkTiles];  // K, [j][i]; then M T
  ptx::begin_products();
  start_products<kSsdHeadSize>(products, shared.x[stage], dy);
  ptx::end_product_group();
  wait_for_products<0>(products);
  save_dy_x(terms, products, row);
  LeftTile weights[kChunkDepths] = {};
  const float2 direct = weigh_products(weights, t, products, OwnSums(shared.products), steps, row);
  SumTile v[kHeadTiles];  // G B_j, then v
  ptx::begin_products();
  start_products<N>(v, shared.b, shared.d_states[stage]);
  ptx::end_product_group();
  wait_for_products<0>(v);
  const float2 from_state = weigh_from_state(v, shared.x[stage], steps, row);
  ptx::begin_products();
  start_products(v, weights, dy, 0, true);
  ptx::end_product_group();
  save_steps(terms, steps, direct, from_state, row);
  wait_for_products<0>(v);
  round_rows(dx, v, dy, steps, skip, row);
  sum_triangles(products, terms.triangles[row / 16], row);
}

/// This warp's addend of <G, S>, which is the sum of the diagonal of G S^T.
__device__ inline void save_states(RowTerms& terms, const SumTile (&products)[kHeadTiles],
                                   int row) {
  const Diagonal diagonal(row);
  float sum = 0;
#pragma unroll
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    const float elem = diagonal.of(products[tile], tile);
    sum += diagonal.has(tile) ? elem : 0.0f;
  }
  sum = warp_sum(diagonal.is_here() ? sum : 0.0f);
  if (lane_index() == 0) {
    terms.states[row / 16] = sum;
  }
}

/// The products of S C_i with dy_i, which has its weights.
__device__ inline void save_from_state(RowTerms& terms, const SumTile (&products)[kHeadTiles],
                                       const LeftTile (&dy)[kHeadDepths], int row) {
  float sums[2] = {};
#pragma unroll
  for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 dy_pair = unpack_bf16(dy[tile / 2][tile % 2 * 2 + half]);
      sums[half] += products[tile][2 * half] * dy_pair.x + products[tile][2 * half + 1] * dy_pair.y;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = row_sum(sums[half]);
    if (lane_index() % 4 == 0) {
      terms.from_state[row + sum_row(half)] = sum;
    }
  }
}

/// A warp's rows of a tile, two rows of a lane scaled.
__device__ inline void load_scaled(LeftTile (&left)[kHeadDepths], const RowTile& tile, int row,
                                   float first, float second) {
#pragma unroll
  for (int depth = 0; depth < kHeadDepths; ++depth) {
    load_left(left[depth], tile, row, 16 * depth);
    scale_rows(left[depth], first, second);
  }
}

/// The part of a head with G and S.
template <int N>
__device__ void compute_factors(BackwardShared<N>& shared, FactorSums<N>& sums, RowTerms& terms,
                                int row, int stage) {
  const StepTile& steps = shared.steps[stage];
  const int rows[2] = {row + sum_row(0), row + sum_row(1)};
  SumTile products[kHeadTiles];  // G S^T, then S C_i
  ptx::begin_products();
  start_products<N>(products, shared.d_states[stage], shared.states[stage]);
  ptx::end_product_group();
  LeftTile dy[kHeadDepths];
  load_scaled(dy, shared.dy[stage], row, steps.from_begin(rows[0]), steps.from_begin(rows[1]));
  wait_for_products<0>(products);
  save_states(terms, products, row);
  ptx::begin_products();
  start_products<N>(products, shared.c, shared.states[stage]);
  ptx::end_product_group();
  start_products(sums.c, dy, shared.states[stage], 0, true);
  ptx::end_product_group();
  wait_for_products<1>(products);
  save_from_state(terms, products, dy, row);
  wait_for_products<0>(sums.c);
  LeftTile x[kHeadDepths];
  load_scaled(x, shared.x[stage], row, steps.to_end(rows[0]) * steps.dt[rows[0]],
              steps.to_end(rows[1]) * steps.dt[rows[1]]);
  ptx::begin_products();
  start_products(sums.b, x, shared.d_states[stage], 0, true);
  ptx::end_product_group();
  wait_for_products<0>(sums.b);
}

/// Adds T C to dB and T^T B to dC, then writes both.
template <int N>
__device__ void finish_factors(const Mamba2Args& args, BackwardShared<N>& shared,
                               FactorSums<N>& sums, const ChunkRows& rows, const BlockHeads& heads,
                               int row) {
  HeadTile& t = shared.dx[0];
  LeftTile of_b[kChunkDepths];
  LeftTile of_c[kChunkDepths];
#pragma unroll
  for (int depth = 0; depth < kChunkDepths; ++depth) {
    load_left(of_b[depth], t.at(row, 16 * depth), HeadTile::kStride);
    load_left_transposed(of_c[depth], t.at(16 * depth, row), HeadTile::kStride);
  }
  ptx::begin_products();
  start_products(sums.b, of_b, shared.c, 0, true);
  start_products(sums.c, of_c, shared.b, 0, true);
  ptx::end_product_group();
  wait_for_products<0>(sums.b, sums.c);
  sums.save(args, rows, heads, row);
}

/// What the warpgroup of dB and dC does.
template <int N>
__device__ void add_factors(const Mamba2Args& args, BackwardShared<N>& shared, HeadWalk<N>& walk,
                            const ChunkRows& rows, const BlockHeads& heads) {
  const int row = warp_row();
  FactorSums<N> sums;
  const auto finish_head = [&](int h) {  // once its rows j are computed
    ptx::sync_some(kHeadIsDone + h % kRowGroups, 2 * kWarpgroup);
    if (row / 16 == h % kChunkWarps) {
      save_terms(args, rows, heads.first + h, shared.terms[h % kStages]);
    }
  };
  for (int h = 0; h < heads.count; ++h) {
    const int stage = h % kStages;
    ptx::wait_for_copies<1>();
    publish_factors();
    ptx::arrive_some(kTilesAreHere + h % kRowGroups, 2 * kWarpgroup);
    ptx::sync_some(kFactors, kWarpgroup);  // and the head before is done here
    RowTerms& terms = shared.terms[stage];
    if (threadIdx.x == 0) {
      terms.whole_decay = shared.steps[stage].whole();
    }
    compute_factors<N>(shared, sums, terms, row, stage);
    // Only now, so that rows j of the head before and these factors are computed at once.
    if (h > 0) {
      finish_head(h - 1);
    }
    if (h + 2 < heads.count) {
      walk.start_next(shared, (h + 2) % kStages);
    } else {
      ptx::end_copy_group();
    }
  }
  ptx::sync_some(kFactors, kWarpgroup);
  finish_head(heads.count - 1);
  __syncthreads();  // T is here
  finish_factors<N>(args, shared, sums, rows, heads, row);
}

/// The sum of both warpgroups' T, rounded.
__device__ inline void save_t(HeadTile& sum, const SumTile (&t)[kChunkTiles], const OwnSums& others,
                              int row) {
#pragma unroll
  for (int tile = 0; tile < kChunkTiles; ++tile) {
    const float4 other = others[tile];
    const int column = 8 * tile + sum_column();
    *reinterpret_cast<uint32_t*>(sum.at(row + sum_row(0), column)) =
        pack_bf16(t[tile][0] + other.x, t[tile][1] + other.y);
    *reinterpret_cast<uint32_t*>(sum.at(row + sum_row(1), column)) =
        pack_bf16(t[tile][2] + other.z, t[tile][3] + other.w);
  }
}

/// What warpgroup `group` of the rows j does.
template <int N>
__device__ void add_rows(const Mamba2Args& args, BackwardShared<N>& shared, const ChunkRows& rows,
                         const BlockHeads& heads, int group) {
  const Mamba2Sizes& s = args.sizes;
  const int row = warp_row();
  const OwnSums own_products(shared.products);
  SumTile t[kChunkTiles] = {};
  if (group == 0) {
    SumTile m[kChunkTiles];
    ptx::begin_products();
    start_products<N>(m, shared.b, shared.c);
    ptx::end_product_group();
    wait_for_products<0>(m);
    own_products.save(m);
  }
  ptx::sync_some(kRows, kRowGroups * kWarpgroup);
  HeadTile& dx = shared.dx[group];
  const RowWriter<kSsdHeadSize> writer(args.dx + rows.begin * s.inner() + heads.first * s.head_size,
                                       s.inner(), row, 0, s.head_size, true);
  for (int h = group; h < heads.count; h += kRowGroups) {
    const int head = heads.first + h;
    const float skip = widen(args.skip[head]);
    ptx::sync_some(kTilesAreHere + group, 2 * kWarpgroup);
    compute_rows<N>(shared, t, shared.terms[h % kStages], dx, row, h % kStages, skip);
    ptx::arrive_some(kHeadIsDone + group, 2 * kWarpgroup);
    writer.save(dx, int64_t{h} * s.head_size, rows.count);
  }
  ptx::sync_some(kRows, kRowGroups * kWarpgroup);  // nobody reads M any more
  if (group == 1) {
    own_products.save(t);
  }
  ptx::sync_some(kRows, kRowGroups * kWarpgroup);
  if (group == 0) {
    save_t(dx, t, own_products, row);
  }
  __syncthreads();
}

template <int N>
__global__ void __launch_bounds__(kThreads, 1)
    chunks_backward_kernel(const __grid_constant__ Mamba2Args args) {
  if constexpr (ptx::kIsHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    auto& shared = *reinterpret_cast<BackwardShared<N>*>(memory);
    const Mamba2Sizes& s = args.sizes;
    const ChunkRows rows(s, static_cast<int>(blockIdx.x));
    const BlockHeads heads(s);
    const Mamba2Data* const factors =
        args.xbc + rows.begin * s.convolved() + factor_column(s, heads.group);
    start_load<kThreads>(shared.b, factors, s.convolved(), rows.count, s.state);
    start_load<kThreads>(shared.c, factors + s.factor(), s.convolved(), rows.count, s.state);
    ptx::end_copy_group();
    ptx::wait_for_copies<0>();
    publish_factors();
    __syncthreads();
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
    if (warpgroup == 0) {
      ptx::take_registers<kFactorRegisters>();
      HeadWalk<N> walk(args, rows, heads.first);
      walk.start_next(shared, 0);
      if (heads.count > 1) {
        walk.start_next(shared, 1);
      } else {
        ptx::end_copy_group();
      }
      add_factors<N>(args, shared, walk, rows, heads);
    } else {
      ptx::give_registers<kRowRegisters>();
      add_rows<N>(args, shared, rows, heads, warpgroup - 1);
    }
  }
}

}  // namespace

void launch_mamba2_chunks_backward_sm90(const Mamba2Args& args, cudaStream_t stream) {
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
