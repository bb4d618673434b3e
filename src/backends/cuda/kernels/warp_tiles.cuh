#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/ptx.cuh"

// Products of small bf16 matrices in shared memory by one warp, with sums in f32 registers. Rows in
// shared memory are kRowPadding elements longer than their data, so that the eight rows that are
// read at once lie in different banks.
namespace braid {

inline constexpr int kRowPadding = 8;  ///< elements

/// A factor [16 rows, 16 depth], and sums [16 rows, 8 columns]: of the factor, lane l has rows
/// l / 4 and l / 4 + 8; of the sums sum[0], sum[1] in row l / 4 and sum[2], sum[3] in row l / 4 +
/// 8, both in columns 2 (l % 4) and the next.
using LeftTile = uint32_t[4];
using SumTile = float[4];

__device__ inline int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarpSize;
}
/// Of this lane in a SumTile; `half` is 1 for the row 8 further down.
__device__ inline int sum_row(int half = 0) {
  return lane_index() / 4 + 8 * half;
}
__device__ inline int sum_column() {
  return 2 * (lane_index() % 4);
}

/// From rows of shared memory [row][depth].
__device__ inline void load_left(LeftTile& tile, const __nv_bfloat16* at, int stride) {
  const int lane = lane_index();
  ptx::load_matrices(tile, at + (lane % 16) * stride + lane / 16 * 8);
}
/// From [depth][row].
__device__ inline void load_left_transposed(LeftTile& tile, const __nv_bfloat16* at, int stride) {
  const int lane = lane_index();
  ptx::load_transposed_matrices(tile, at + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}

/// Two right factors [16 depth, 8 columns], columns 0 to 7 and 8 to 15.
struct RightTiles {
  uint32_t of[4];
};
/// From [column][depth].
__device__ inline RightTiles load_right(const __nv_bfloat16* at, int stride) {
  const int lane = lane_index();
  RightTiles tiles;
  ptx::load_matrices(tiles.of, at + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
  return tiles;
}
/// From [depth][column].
__device__ inline RightTiles load_right_transposed(const __nv_bfloat16* at, int stride) {
  const int lane = lane_index();
  RightTiles tiles;
  ptx::load_transposed_matrices(tiles.of, at + (lane % 16) * stride + lane / 16 * 8);
  return tiles;
}

/// Adds the products with both right factors to two tiles of sums.
__device__ inline void add_products(SumTile& first, SumTile& second, const LeftTile& left,
                                    const RightTiles& right) {
  ptx::multiply_add(first, left, right.of[0], right.of[1]);
  ptx::multiply_add(second, left, right.of[2], right.of[3]);
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}
__device__ inline float2 unpack_bf16(uint32_t word) {
  __nv_bfloat162 pair;
  memcpy(&pair, &word, sizeof(word));
  return __bfloat1622float2(pair);
}

/// Sums of 16 columns, rounded, as the left factor of another product.
__device__ inline void to_left(LeftTile& tile, const SumTile& first, const SumTile& second) {
  tile[0] = pack_bf16(first[0], first[1]);
  tile[1] = pack_bf16(first[2], first[3]);
  tile[2] = pack_bf16(second[0], second[1]);
  tile[3] = pack_bf16(second[2], second[3]);
}

/// Two neighbours in a row, from shared memory.
__device__ inline float2 load_pair(const __nv_bfloat16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}

/// Over the four lanes that share a row of sums.
__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
/// Over the eight lanes that share a column of sums.
__device__ inline float column_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 4);
  value += __shfl_xor_sync(0xffffffffu, value, 8);
  return value + __shfl_xor_sync(0xffffffffu, value, 16);
}

}  // namespace braid
