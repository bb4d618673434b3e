#pragma once

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/mamba2.cuh"
#include "backends/cuda/kernels/warp_tiles.cuh"

// What the kernels over chunks share, those for all GPUs and those for Hopper (`_sm90`): tiles of a
// chunk in shared memory. Heads have up to kSsdHeadSize elements and states up to N; what is
// missing of either is 0.
namespace braid {

inline constexpr int kChunkTiles = kSsdChunk / 8;    ///< SumTiles of a chunk's rows, as columns
inline constexpr int kHeadTiles = kSsdHeadSize / 8;  ///< of a head's elements
inline constexpr int kChunkDepths = kSsdChunk / 16;  ///< LeftTiles of a chunk's rows, as depth

/// [rows, columns] with padding between rows, as a warp writes and reads them.
template <int kRows, int kColumns>
struct SharedTile {
  static constexpr int kNumRows = kRows;
  static constexpr int kNumColumns = kColumns;
  static constexpr int kStride = kColumns + kRowPadding;
  alignas(16) Mamba2Data elems[kRows * kStride];

  __device__ Mamba2Data* at(int row, int column) { return elems + row * kStride + column; }
};

/// Starts copies of [rows, columns], by all kThreads threads; the other elements are 0.
template <int kThreads, class Tile>
__device__ void start_load(Tile& tile, const Mamba2Data* from, int64_t stride, int rows,
                           int columns) {
  constexpr int kVector = 8;
  constexpr int kVectors = Tile::kNumColumns / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kNumRows * kVectors; i += kThreads) {
    const int row = i / kVectors;
    const int column = i % kVectors * kVector;
    const bool exists = row < rows && column < columns;
    ptx::copy_16_async(tile.at(row, column), exists ? from + row * stride + column : from, exists);
  }
}

/// Loads of one tile after the other, each at the same distance behind the one before, by
/// kThreads threads: a thread computes its addresses once, and adds to them from then on.
template <class Tile, int kThreads>
class TileWalk {
 public:
  /// Of tiles [., columns] whose rows are `stride` apart.
  __device__ TileWalk(const Mamba2Data* first, int64_t stride, int columns, int64_t distance)
      : from_(first + row() * stride + column()),
        rows_distance_(static_cast<int>(kRowsAtOnce * stride)),
        distance_(static_cast<int>(distance)),
        exists_(column() < columns) {}

  /// Starts the copies of the next tile; rows from `rows` on, and missing columns, are 0.
  __device__ void start_next(Tile& tile, int rows) {
    const Mamba2Data* from = from_;
    Mamba2Data* const to = tile.at(row(), column());
#pragma unroll
    for (int r = 0; r < Tile::kNumRows; r += kRowsAtOnce) {
      ptx::copy_16_async(to + r * Tile::kStride, from, exists_ && row() + r < rows);
      from += rows_distance_;
    }
    from_ += distance_;
  }

 private:
  static constexpr int kVector = 8;
  static constexpr int kVectors = Tile::kNumColumns / kVector;
  static constexpr int kRowsAtOnce = kThreads / kVectors;
  static_assert(kThreads % kVectors == 0 && Tile::kNumRows % kRowsAtOnce == 0);

  __device__ static int row() {
    return static_cast<int>(threadIdx.x) % kThreads / kVectors;
  }
  __device__ static int column() {
    return static_cast<int>(threadIdx.x) % kVectors * kVector;
  }

  const Mamba2Data* from_;
  int rows_distance_;
  int distance_;
  bool exists_;
};

/// The rows of x or y, or of their gradients, of one head in one chunk.
using HeadTile = SharedTile<kSsdChunk, kSsdHeadSize>;
/// B or C of a group in one chunk.
template <int N>
using FactorTile = SharedTile<kSsdChunk, N>;
/// The state of a head, or its gradient.
template <int N>
using StateTile = SharedTile<kSsdHeadSize, N>;

/// Loads of the block's chunk, head by head: of [T, heads * head_size] in rows `stride` apart; and
/// of states, or their gradients.
template <class Tile, int kThreads>
__device__ TileWalk<Tile, kThreads> walk_head_rows(const Mamba2Sizes& s, const Mamba2Data* data,
                                                   int64_t stride, const ChunkRows& rows,
                                                   int first_head) {
  return {data + rows.begin * stride + first_head * s.head_size, stride, s.head_size, s.head_size};
}
template <class Tile, int kThreads>
__device__ TileWalk<Tile, kThreads> walk_head_states(const Mamba2Sizes& s, const Mamba2Data* states,
                                                     int first_head) {
  return {states + (int64_t{blockIdx.x} * s.heads + first_head) * s.state_elems(), s.state, s.state,
          s.state_elems()};
}

/// What the rows of a chunk count in a state: `to_end` or `from_begin`; then the last decays from
/// the chunk's begin, of which the very last is that over the whole chunk.
struct WeightTile {
  static constexpr int kVector = 4;
  static constexpr int kVectors = kSsdChunk / kVector + 1;
  alignas(16) float of[kVectors * kVector];

  __device__ float whole_decay() const { return of[kVectors * kVector - 1]; }
};

/// dt and the decay since the begin of a chunk, of one head.
struct StepTile {
  alignas(16) float dt[kSsdChunk];
  float decay[kSsdChunk];

  /// log2 of the decay over the whole chunk.
  __device__ float whole() const { return decay[kSsdChunk - 1]; }
  /// Of the state, from after row j to the end of the chunk.
  __device__ float to_end(int j) const { return ptx::exp2_approx(whole() - decay[j]); }
  __device__ float from_begin(int i) const { return ptx::exp2_approx(decay[i]); }
  /// From after row j to row i. The exponent is positive, and the result infinite, for i < j.
  __device__ float between(int j, int i) const {
    return i >= j ? ptx::exp2_approx(decay[i] - decay[j]) : 0.0f;
  }
};

/// Loads of the steps of a chunk, head by head.
class StepWalk {
 public:
  __device__ StepWalk(const Mamba2Args& args, const ChunkRows& rows, int first_head)
      : distance_(args.sizes.padded_rows()) {
    const int thread = static_cast<int>(threadIdx.x);
    from_ = (thread < kVectors ? args.dt : args.decay) + first_head * distance_ + rows.padded +
            thread % kVectors * kVector;
  }
  __device__ void start_next(StepTile& tile) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < 2 * kVectors) {
      ptx::copy_16_async((thread < kVectors ? tile.dt : tile.decay) + thread % kVectors * kVector,
                         from_, true);
    }
    from_ += distance_;
  }

 private:
  static constexpr int kVector = 4;
  static constexpr int kVectors = kSsdChunk / kVector;

  const float* from_;
  int64_t distance_;
};

/// B of a group in a row of xbc; C follows that of the last group.
__device__ inline int factor_column(const Mamba2Sizes& s, int group) {
  return s.inner() + group * s.state;
}

/// The heads of one block of a kernel over all chunks; blockIdx.y counts the parts of all groups.
struct BlockHeads {
  int group;
  int part;
  int first;
  int count;

  __device__ explicit BlockHeads(const Mamba2Sizes& s)
      : group(static_cast<int>(blockIdx.y) / s.parts()),
        part(static_cast<int>(blockIdx.y) % s.parts()) {
    const int begin = part * s.heads_per_part();
    first = group * s.heads_per_group() + begin;
    count = min(s.heads_per_part(), s.heads_per_group() - begin);
  }
};

/// Scales rows of a factor of bf16.
__device__ inline void scale_rows(LeftTile& tile, float first, float second) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bf16(tile[i]);
    const float scale = i % 2 == 0 ? first : second;
    tile[i] = pack_bf16(pair.x * scale, pair.y * scale);
  }
}

/// Writes 16 rows and kColumns columns of tiles, which a warp filled, in pieces of 16 bytes if
/// these are aligned.
template <int kColumns>
class RowWriter {
 public:
  /// To rows `stride` apart, `to` being row 0 of a tile, of which `columns` columns exist; from
  /// [row, column] of a tile.
  __device__ RowWriter(Mamba2Data* to, int stride, int row, int column, int columns, bool aligned)
      : row_(row + lane_index() / kVectors),
        column_(column + lane_index() % kVectors * kVector),
        stride_(stride),
        exists_(column_ < columns),
        aligned_(aligned),
        to_(to + int64_t{row_} * stride + column_) {}

  /// `distance` elements further on; `count` rows exist.
  __device__ void save(HeadTile& tile, int64_t distance, int count) const {
    __syncwarp();
    Mamba2Data* to = to_ + distance;
#pragma unroll
    for (int r = 0; r < 16; r += kRowsAtOnce) {
      if (exists_ && row_ + r < count) {
        const auto vector = load_vector<kVector, true>(tile.at(row_ + r, column_), kVector);
        if (aligned_) {
          store_vector<true>(to, vector, kVector);
        } else {
          store_vector<false>(to, vector, kVector);
        }
      }
      to += kRowsAtOnce * stride_;
    }
    __syncwarp();
  }

 private:
  static constexpr int kVector = 8;
  static constexpr int kVectors = kColumns / kVector;
  static constexpr int kRowsAtOnce = kWarpSize / kVectors;

  int row_;
  int column_;
  int stride_;
  bool exists_;
  bool aligned_;
  Mamba2Data* to_;
};

/// A block that has all its shared memory at once. Throws ConfigError on a GPU without so much.
template <class Shared, class Kernel>
void allow_shared(Kernel* kernel) {
  int device = 0;
  int limit_bytes = 0;
  BRAID_CUDA_CHECK(cudaGetDevice(&device));
  BRAID_CUDA_CHECK(
      cudaDeviceGetAttribute(&limit_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  constexpr int kBytes = sizeof(Shared);
  check_mamba2_shared(kBytes, limit_bytes);
  BRAID_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
}

/// Calls launch.template operator()<N>() for the tile that holds states of this size.
void dispatch_state(const Mamba2Sizes& sizes, const auto& launch) {
  if (sizes.state <= 64) {
    launch.template operator()<64>();
  } else {
    launch.template operator()<128>();
  }
}

}  // namespace braid
