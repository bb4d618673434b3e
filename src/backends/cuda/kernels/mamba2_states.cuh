#pragma once

#include "backends/cuda/kernels/mamba2_tiles.cuh"

// What the walks through the chunks of a head share. A block has a head of a sequence, blockIdx.x
// and .y, and keeps columns of its state [P, N] in registers, f32, from chunk to chunk. Per chunk
//   forward   S <- decay S + sum_j decay from j to the end, dt_j x_j B_j^T
//   backward  G <- decay G + sum_i decay from the begin to i, dy_i C_i^T
// A sequence begins with 0, or with `initial` or `d_final`.
namespace braid {

/// The loads of a block, chunk by chunk in the order of its walk, by its first kThreads threads:
/// rows of x or dy, and those columns of B or C that blockIdx.z counts.
template <class Rows, class Factors, int kThreads, bool kBackward>
class ChunkWalk {
 public:
  __device__ explicit ChunkWalk(const Mamba2Args& args)
      : chunk_(kBackward ? args.sizes.chunks_per_sequence() - 1 : 0),
        left_(args.sizes.chunks_per_sequence()),
        sequence_(args.sizes.sequence),
        rows_(rows_walk(args)),
        factors_(factors_walk(args)),
        weights_(first_weights(args)) {}

  /// Starts the copies of the next chunk, if there is one.
  __device__ void start_next(Rows& rows, Factors& factors, WeightTile& weights) {
    if (left_ == 0) {
      return;
    }
    const int count = min(kSsdChunk, sequence_ - chunk_ * kSsdChunk);
    rows_.start_next(rows, count);
    factors_.start_next(factors, count);
    if (threadIdx.x < WeightTile::kVectors) {
      ptx::copy_16_async(weights.of + WeightTile::kVector * threadIdx.x, weights_, true);
    }
    weights_ += kStep * kSsdChunk;
    chunk_ += kStep;
    --left_;
  }

 private:
  static constexpr int kStep = kBackward ? -1 : 1;

  __device__ static ChunkRows first_rows(const Mamba2Sizes& s) {
    const int chunks = s.chunks_per_sequence();
    return ChunkRows(s, static_cast<int>(blockIdx.y) * chunks + (kBackward ? chunks - 1 : 0));
  }
  __device__ static TileWalk<Rows, kThreads> rows_walk(const Mamba2Args& args) {
    const Mamba2Sizes& s = args.sizes;
    const int64_t stride = kBackward ? s.inner() : s.convolved();
    const Mamba2Data* const from = (kBackward ? args.dy : args.xbc) + first_rows(s).begin * stride +
                                   static_cast<int>(blockIdx.x) * s.head_size;
    return {from, stride, s.head_size, kStep * kSsdChunk * stride};
  }
  __device__ static TileWalk<Factors, kThreads> factors_walk(const Mamba2Args& args) {
    const Mamba2Sizes& s = args.sizes;
    const int begin = static_cast<int>(blockIdx.z) * Factors::kNumColumns;
    const int column = factor_column(s, static_cast<int>(blockIdx.x) / s.heads_per_group()) +
                       (kBackward ? s.factor() : 0) + begin;
    const int64_t stride = s.convolved();
    return {args.xbc + first_rows(s).begin * stride + column, stride, s.state - begin,
            kStep * kSsdChunk * stride};
  }
  __device__ static const float* first_weights(const Mamba2Args& args) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t at = blockIdx.x * args.sizes.padded_rows() + first_rows(args.sizes).padded;
    const float* const weights = kBackward ? args.from_begin : args.to_end;
    return thread + 1 < WeightTile::kVectors
               ? weights + at + WeightTile::kVector * thread
               : args.from_begin + at + kSsdChunk - WeightTile::kVector;
  }

  int chunk_;
  int left_;
  int sequence_;
  TileWalk<Rows, kThreads> rows_;
  TileWalk<Factors, kThreads> factors_;
  const float* weights_;
};

/// A warp's 16 rows and kTiles tiles of columns of the state at an end of a sequence, in f32.
template <int kTiles>
class EndState {
 public:
  /// Of the block's sequence and head; the part begins in [row, column].
  __device__ EndState(const Mamba2Sizes& s, int row, int column)
      : row_(row), column_(column), sizes_(s) {}

  /// From [sequences, heads, head_size, state]. Null: leaves `state` as it is.
  __device__ void load(const float* from, SumTile (&state)[kTiles]) const {
    if (from != nullptr) {
      for_each(from + (blockIdx.y * sizes_.heads + blockIdx.x) * sizes_.state_elems(), state,
               [](const float* at, float& elem) { elem = *at; });
    }
  }
  /// To `summaries` of Mamba2Args, if there are any.
  __device__ void save(float* summaries, SumTile (&state)[kTiles]) const {
    if (summaries != nullptr) {
      for_each(summaries + blockIdx.y * sizes_.heads * (sizes_.state_elems() + 1) +
                   blockIdx.x * sizes_.state_elems(),
               state, [](float* at, float& elem) { *at = elem; });
    }
  }

 private:
  template <class T>
  __device__ void for_each(T* head, SumTile (&state)[kTiles], const auto& visit) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row_ + sum_row(i / 2);
        const int column = column_ + 8 * tile + sum_column() + i % 2;
        if (row < sizes_.head_size && column < sizes_.state) {
          visit(head + int64_t{row} * sizes_.state + column, state[tile][i]);
        }
      }
    }
  }

  int row_;
  int column_;
  const Mamba2Sizes& sizes_;
};

/// A warp's part of a state, rounded, by rows of a lane.
template <int kTiles>
using RoundedState = uint32_t[2][kTiles];

/// Rounds a state as it is before a chunk, then lets it decay over the chunk.
template <int kTiles>
__device__ void round_and_decay(RoundedState<kTiles>& before, SumTile (&state)[kTiles],
                                float decay) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const pair = state[tile] + 2 * half;
      before[half][tile] = pack_bf16(pair[0], pair[1]);
      pair[0] *= decay;
      pair[1] *= decay;
    }
  }
}

/// To [row, column] of a tile.
template <class Tile, int kTiles>
__device__ void save_rounded(Tile& tile, const RoundedState<kTiles>& state, int row, int column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      *reinterpret_cast<uint32_t*>(tile.at(row + sum_row(half), column + 8 * i + sum_column())) =
          state[half][i];
    }
  }
}

/// Writes a warp's 16 rows and kColumns columns of the state, chunk by chunk in the order of the
/// walk, by way of a tile in shared memory, so that rows are written in pieces of 16 bytes. Writes
/// nothing if `states`, or `d_states`, is null.
template <class Tile, int kColumns, bool kBackward>
class StateWriter {
 public:
  /// The warp's part begins in [row, column] of the tile.
  __device__ StateWriter(const Mamba2Args& args, int row, int column)
      : row_(row), column_(column), row_stride_(args.sizes.state) {
    const Mamba2Sizes& s = args.sizes;
    const int chunks = s.chunks_per_sequence();
    const int first = static_cast<int>(blockIdx.y) * chunks + (kBackward ? chunks - 1 : 0);
    distance_ = s.heads * s.state_elems();
    const int n = static_cast<int>(blockIdx.z) * Tile::kNumColumns + column + own_column();
    const bool is_written = (kBackward ? args.d_states : args.states) != nullptr;
    rows_ = is_written && n < s.state ? s.head_size - row - own_row() : 0;
    to_ = (kBackward ? args.d_states : args.states) + first * distance_ +
          blockIdx.x * s.state_elems() + int64_t{row + own_row()} * s.state + n;
    distance_ = kBackward ? -distance_ : distance_;
  }

  __device__ void save_next(Tile& tile, const RoundedState<kColumns / 8>& state) {
    save_rounded(tile, state, row_, column_);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 16; r += kRowsAtOnce) {
      if (r < rows_) {
        store_vector<true>(to_ + r * row_stride_,
                           load_vector<kVector, true>(
                               tile.at(row_ + r + own_row(), column_ + own_column()), kVector),
                           kVector);
      }
    }
    __syncwarp();
    to_ += distance_;
  }

 private:
  static constexpr int kVector = 8;
  static constexpr int kVectors = kColumns / kVector;
  static constexpr int kRowsAtOnce = kWarpSize / kVectors;

  __device__ static int own_row() {
    return lane_index() / kVectors;
  }
  __device__ static int own_column() {
    return lane_index() % kVectors * kVector;
  }

  int row_;
  int column_;
  int rows_;  ///< of the head from this lane's first on
  int64_t row_stride_;
  int64_t distance_;
  Mamba2Data* to_;
};

}  // namespace braid
