#pragma once

#include "backends/cuda/kernels/ptx_sm90.cuh"
#include "backends/cuda/kernels/warp_tiles.cuh"

// Products of bf16 matrices in shared memory by a warpgroup, four warps with 16 rows of the result
// each, with sums in f32 registers. Hopper's tensor cores read shared memory by themselves
// (`wgmma`), while the warps go on. Sums lie in SumTiles of 8 columns, tile by tile.
//
//   ptx::begin_products();
//   start_products(c, ...);       // c must not be touched until
//   ptx::end_product_group();
//   wait_for_products<0>(c);      // its group has ended
//
// Kernels have a body only where ptx::kIsHopper.
namespace braid {

inline constexpr int kWarpgroup = 128;  ///< threads

__device__ inline int warpgroup_thread() {
  return static_cast<int>(threadIdx.x) % kWarpgroup;
}
/// The first of the 16 rows of this thread's warp.
__device__ inline int warp_row() {
  return warpgroup_thread() / kWarpSize * 16;
}

/// [rows, columns] in panels of 64 columns, whose rows of 128 bytes have their pieces of 16 bytes
/// in another order in each of eight rows, so that eight rows can be read at once.
template <int kRows, int kColumns>
struct PanelTile {
  static_assert(kRows % 8 == 0 && kColumns % 64 == 0);
  static constexpr int kNumRows = kRows;
  static constexpr int kNumColumns = kColumns;
  static constexpr int kStride = 64;  ///< to the same place of a row that is 8, 16, ... further
  static constexpr int kPanel = kRows * kStride;
  alignas(1024) __nv_bfloat16 elems[kRows * kColumns];

  __device__ __nv_bfloat16* at(int row, int column) {
    return elems + column / 64 * kPanel + row * kStride + ((column % 64 / 8) ^ (row % 8)) * 8 +
           column % 8;
  }
  __device__ const __nv_bfloat16* at(int row, int column) const {
    return const_cast<PanelTile*>(this)->at(row, column);
  }
};

/// A lane's pairs of neighbours in a row, as a SumTile has them, of the warp's rows from `row` on.
class PairsOfRow {
 public:
  template <class Tile>
  __device__ PairsOfRow(const Tile& tile, int row)
      : first_(ptx::shared_address(tile.at(row + sum_row(), sum_column()))) {}

  /// Of the first 64 columns.
  __device__ float2 load(int tile, int half) const {
    return unpack_bf16(ptx::load_word((first_ ^ 16u * tile) + 1024u * half));
  }

 private:
  uint32_t first_;
};

/// A warp's part of a left factor, 16 rows and 16 elements of the depth, from [row][depth].
template <class Tile>
__device__ void load_left(LeftTile& left, const Tile& tile, int row, int depth) {
  const int lane = lane_index();
  ptx::load_matrices(left, tile.at(row + lane % 16, depth + lane / 16 * 8));
}
/// From [depth][row].
template <class Tile>
__device__ void load_left_transposed(LeftTile& left, const Tile& tile, int depth, int row) {
  const int lane = lane_index();
  ptx::load_transposed_matrices(left,
                                tile.at(depth + lane % 8 + lane / 16 * 8, row + lane / 8 % 2 * 8));
}

/// What the threads wrote to shared memory can be a factor after the next barrier.
__device__ inline void publish_factors() {
  ptx::fence_for_copies();
}
/// Until at most kPending groups are under way, so that those of `sums` have ended.
template <int kPending, class... Sums>
__device__ void wait_for_products(Sums&... sums) {
  ptx::wait_for_products<kPending>();
  (ptx::keep_order(sums), ...);
}

/// c [64, 64] = left [64, kDepth] right [64, kDepth]^T.
template <int kDepth, class Left, class Right>
__device__ void start_products(SumTile (&c)[8], const Left& left, const Right& right) {
  const uint64_t a = ptx::describe_rows_of_128_bytes(ptx::shared_address(left.elems));
  const uint64_t b = ptx::describe_rows_of_128_bytes(ptx::shared_address(right.elems));
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    const int step = depth % 64 / 8;
    ptx::multiply_bf16<ptx::Right::kRowsAreColumns>(c, a + depth / 64 * Left::kPanel / 8 + step,
                                                    b + depth / 64 * Right::kPanel / 8 + step,
                                                    depth > 0);
  }
}

/// c [64, columns] = or, with `adds`, += left [64, kDepths * 16] right [depth, columns from
/// `column` on, a multiple of 64].
template <int kTiles, int kDepths, class Tile>
__device__ void start_products(SumTile (&c)[kTiles], const LeftTile (&left)[kDepths],
                               const Tile& right, int column, bool adds) {
  const uint64_t b = ptx::describe_depths_of_128_bytes(
      ptx::shared_address(right.elems + column / 64 * Tile::kPanel),
      Tile::kPanel * static_cast<int>(sizeof(__nv_bfloat16)));
#pragma unroll
  for (int depth = 0; depth < kDepths; ++depth) {
    ptx::multiply_bf16<ptx::Right::kRowsAreDepths>(c, left[depth], b + 128 * depth,
                                                   adds || depth > 0);
  }
}

/// Sums of a warpgroup in memory, as its threads have them: [tile][thread]. A thread sees its own.
class OwnSums {
 public:
  __device__ explicit OwnSums(float4* sums) : own_(sums + warpgroup_thread()) {}

  __device__ float4& operator[](int tile) const { return own_[tile * kWarpgroup]; }
  template <int kTiles>
  __device__ void save(const SumTile (&sums)[kTiles]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const SumTile& from = sums[tile];
      own_[tile * kWarpgroup] = {from[0], from[1], from[2], from[3]};
    }
  }

 private:
  float4* own_;
};

}  // namespace braid
