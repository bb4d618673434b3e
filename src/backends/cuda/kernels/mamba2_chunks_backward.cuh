#pragma once

#include "backends/cuda/kernels/mamba2_tiles.cuh"

// What the kernels for the gradients of chunks share. A block has a chunk and the heads of a group,
// or some of them. With S the state before the chunk, G the gradient of the state after it,
// M = C B^T, L_ij the decay from j to i, and, per head, K_ij = dy_i x_j and T_ij = L_ij K_ij dt_j
// for i >= j:
//   v_j  = sum over i of M_ij L_ij dy_i + decay from j to the end, G B_j
//   dx_j = dt_j v_j + skip dy_j                                      d dt_j = x_j v_j, and
//   dB_j = sum over heads of sum over i of T_ij C_i + decay from j to the end, dt_j G^T x_j
//   dC_i = sum over heads of sum over j of T_ij B_j + decay to i, S^T dy_i
//   d (dt A)_j = sum over i >= j > k of M_ik T_ik + sum over k < j of w_k
//                + sum over i >= j of dy_i (decay to i, S C_i) + whole decay, <G, S>
// with w_k = decay from k to the end, dt_k x_k G B_k. The sums of M T are not the differences of
// sums over rows and columns, which would cancel: rows are summed from their end by products with
// triangles of ones, M T as the sum of two bf16, then columns up to j.
namespace braid {

inline constexpr int kChunkWarps = kSsdChunk / 16;  ///< that have 16 rows of the chunk each

/// What follows from a head's products, row by row, until a warp adds it up.
struct alignas(16) RowTerms {
  float w[kSsdChunk];
  float from_state[kSsdChunk];  ///< dy_i (decay to i, S C_i)
  float d_dt[kSsdChunk];
  float dy_x[kSsdChunk];
  float triangles[kChunkWarps][kSsdChunk];  ///< sums of M T over the rows k of a warp
  float states[kChunkWarps];                ///< addends of <G, S>
  float whole_decay;
};

/// The loads of a block, head by head, by kThreads threads.
template <class Rows, class States, int kThreads>
class HeadGradsWalk {
 public:
  __device__ HeadGradsWalk(const Mamba2Args& args, const ChunkRows& rows, int first_head)
      : rows_(rows.count),
        head_size_(args.sizes.head_size),
        x_(walk_head_rows<Rows, kThreads>(args.sizes, args.xbc, args.sizes.convolved(), rows,
                                          first_head)),
        dy_(walk_head_rows<Rows, kThreads>(args.sizes, args.dy, args.sizes.inner(), rows,
                                           first_head)),
        states_(walk_head_states<States, kThreads>(args.sizes, args.states, first_head)),
        d_states_(walk_head_states<States, kThreads>(args.sizes, args.d_states, first_head)),
        steps_(args, rows, first_head) {}

  /// A group of copies to the tiles of a stage.
  template <class Shared>
  __device__ void start_next(Shared& shared, int stage) {
    x_.start_next(shared.x[stage], rows_);
    dy_.start_next(shared.dy[stage], rows_);
    states_.start_next(shared.states[stage], head_size_);
    d_states_.start_next(shared.d_states[stage], head_size_);
    steps_.start_next(shared.steps[stage]);
    ptx::end_copy_group();
  }

 private:
  int rows_;
  int head_size_;
  TileWalk<Rows, kThreads> x_;
  TileWalk<Rows, kThreads> dy_;
  TileWalk<States, kThreads> states_;
  TileWalk<States, kThreads> d_states_;
  StepWalk steps_;
};

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

/// Adds what two lanes have of the same columns: one keeps the first half of them, the other the
/// second.
template <int kHalf>
__device__ void add_halves(const float (&sums)[2 * kHalf], float (&kept)[kHalf]) {
  constexpr int kDistance = 2 * kHalf;
  const bool keeps_second = (lane_index() & kDistance) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float first = sums[i];
    const float second = sums[i + kHalf];
    kept[i] = (keeps_second ? second : first) +
              __shfl_xor_sync(0xffffffffu, keeps_second ? first : second, kDistance);
  }
}

/// Adds over the eight lanes that share columns, of 16 columns of which a lane keeps two: those of
/// tile lane / 4 of a chunk.
__device__ inline float2 add_columns(const float (&sums)[16]) {
  float eight[8];
  float four[4];
  float two[2];
  add_halves(sums, eight);
  add_halves(eight, four);
  add_halves(four, two);
  return {two[0], two[1]};
}

/// Two tiles as the sum of two factors of bf16.
__device__ inline void split(LeftTile& high, LeftTile& low, const SumTile& first,
                             const SumTile& second) {
  to_left(high, first, second);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const SumTile& exact = i < 2 ? first : second;
    const float2 rounded = unpack_bf16(high[i]);
    low[i] = pack_bf16(exact[2 * (i % 2)] - rounded.x, exact[2 * (i % 2) + 1] - rounded.y);
  }
}

/// e [16 rows k, 64 columns i], 0 for i < k, -> triangles[j] = sum over this warp's k < j and over
/// i >= j.
__device__ inline void sum_triangles(const SumTile (&e)[kChunkTiles], float* triangles, int row) {
  const RightTiles ones_below = lower_triangle();
  const uint32_t ones = pack_bf16(1.0f, 1.0f);
  float later[2] = {};  // of the columns after those of a tile
  float sums[16] = {};  // by columns of this lane
#pragma unroll
  for (int begin = kSsdChunk - 16; begin >= 0; begin -= 16) {
    if (begin < row) {
      continue;
    }
    LeftTile high;
    LeftTile low;
    split(high, low, e[begin / 8], e[begin / 8 + 1]);
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
        const int j = 8 * tile + sum_column() + i % 2;
        const int k = sum_row(i / 2);
        sums[begin / 4 + 2 * tile + i % 2] +=
            begin > row || k < j ? from_column[tile][i] + later[i / 2] : 0.0f;
      }
    }
    later[0] += all[0];
    later[1] += all[2];
  }
  reinterpret_cast<float2*>(triangles)[lane_index()] = add_columns(sums);
}

/// Of pairs of rows, a lane each: the sums over the rows up to a lane's pair, and from it on.
struct RunningSums {
  float until;
  float from;

  __device__ RunningSums(float until_addend, float from_addend)
      : until(until_addend), from(from_addend) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, until, distance);
      const float after = __shfl_down_sync(0xffffffffu, from, distance);
      until += lane_index() >= distance ? before : 0.0f;
      from += lane_index() + distance < kWarpSize ? after : 0.0f;
    }
  }
  /// Without the lane's own pair.
  __device__ float before() const {
    const float sum = __shfl_up_sync(0xffffffffu, until, 1);
    return lane_index() > 0 ? sum : 0.0f;
  }
  __device__ float after() const {
    const float sum = __shfl_down_sync(0xffffffffu, from, 1);
    return lane_index() + 1 < kWarpSize ? sum : 0.0f;
  }
};

/// Writes what a head's rows get, by one warp: a lane has two rows.
__device__ inline void save_terms(const Mamba2Args& args, const ChunkRows& rows, int head,
                                  const RowTerms& terms) {
  const int lane = lane_index();
  float states = 0;
#pragma unroll
  for (int warp = 0; warp < kChunkWarps; ++warp) {
    states += terms.states[warp];
  }
  states *= ptx::exp2_approx(terms.whole_decay);
  const float w[2] = {terms.w[2 * lane], terms.w[2 * lane + 1]};
  const float y[2] = {terms.from_state[2 * lane], terms.from_state[2 * lane + 1]};
  const RunningSums sums(w[0] + w[1], y[0] + y[1]);
  const float before = sums.before();
  float decay[2] = {states + before + sums.from, states + before + w[0] + y[1] + sums.after()};
#pragma unroll
  for (int warp = 0; warp < kChunkWarps; ++warp) {
    decay[0] += terms.triangles[warp][2 * lane];
    decay[1] += terms.triangles[warp][2 * lane + 1];
  }
  const int64_t at = head * args.sizes.padded_rows() + rows.padded + 2 * lane;
  reinterpret_cast<float2*>(args.d_decay + at)[0] = {decay[0], decay[1]};
  reinterpret_cast<float2*>(args.d_dt + at)[0] = {terms.d_dt[2 * lane], terms.d_dt[2 * lane + 1]};
  reinterpret_cast<float2*>(args.dy_x + at)[0] = {terms.dy_x[2 * lane], terms.dy_x[2 * lane + 1]};
}

/// Registers of a warp that has 16 rows of dB and dC.
template <int N>
struct FactorSums {
  SumTile b[N / 8] = {};
  SumTile c[N / 8] = {};

  /// Writes them, from `row` of the chunk on.
  __device__ void save(const Mamba2Args& args, const ChunkRows& rows, const BlockHeads& heads,
                       int row) const {
    const Mamba2Sizes& s = args.sizes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + sum_row(half);
      float* const to = args.d_factors +
                        (heads.part * s.tokens + rows.begin + r) * (2 * s.factor()) +
                        heads.group * s.state;
#pragma unroll
      for (int tile = 0; tile < N / 8; ++tile) {
        const int n = 8 * tile + sum_column();
        if (r < rows.count && n < s.state) {
          *reinterpret_cast<float2*>(to + n) = {b[tile][2 * half], b[tile][2 * half + 1]};
          *reinterpret_cast<float2*>(to + s.factor() + n) = {c[tile][2 * half],
                                                             c[tile][2 * half + 1]};
        }
      }
    }
  }
};

}  // namespace braid
