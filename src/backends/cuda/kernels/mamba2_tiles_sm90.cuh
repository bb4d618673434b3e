#pragma once

#include "backends/cuda/kernels/mamba2_tiles.cuh"
#include "backends/cuda/kernels/warpgroup_tiles_sm90.cuh"

// What the kernels over chunks for Hopper share: tiles that are factors of a warpgroup's products,
// and the rows of a chunk as the left factor of what is added to a state.
namespace braid {

/// The rows of x, or of dy, of one head in one chunk.
using RowTile = PanelTile<kSsdChunk, kSsdHeadSize>;
/// B or C of a group in one chunk.
template <int N>
using FactorPanels = PanelTile<kSsdChunk, N>;
/// The state of a head, or its gradient.
template <int N>
using StatePanels = PanelTile<kSsdHeadSize, N>;

/// A chunk's rows of the head, weighed, for a warp's 16 rows of the state: in f32, as the registers
/// of a factor may not be written while a product is under way.
struct WeighedRows {
  float2 pairs[kChunkDepths][4];

  __device__ void load(const RowTile& rows, const WeightTile& weights, int row) {
#pragma unroll
    for (int depth = 0; depth < kChunkDepths; ++depth) {
      LeftTile tile;
      load_left_transposed(tile, rows, 16 * depth, row);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 weight =
            *reinterpret_cast<const float2*>(weights.of + 16 * depth + 8 * half + sum_column());
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float2 pair = unpack_bf16(tile[i]);
          pairs[depth][i] = {pair.x * weight.x, pair.y * weight.y};
        }
      }
    }
  }
  __device__ void round(LeftTile (&rows)[kChunkDepths]) const {
#pragma unroll
    for (int depth = 0; depth < kChunkDepths; ++depth) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[depth][i] = pack_bf16(pairs[depth][i].x, pairs[depth][i].y);
      }
    }
  }
};

/// Starts adding a chunk to a warp's part of the state, as a group of products.
template <int kTiles, class Factors>
__device__ void start_adding(SumTile (&state)[kTiles], const WeighedRows& weighed,
                             const Factors& factors) {
  LeftTile rows[kChunkDepths];
  weighed.round(rows);
  ptx::begin_products();
  start_products(state, rows, factors, 0, true);
  ptx::end_product_group();
}

}  // namespace braid
