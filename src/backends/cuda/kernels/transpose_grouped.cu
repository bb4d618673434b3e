// As quantize_grouped.cu: a tile has rows of one expert, here as bf16 elements, which are the FP8
// ones times their scales. That is exact, unless an element is below the least bf16 number.
#include "ops/transpose_grouped.h"

#include <cuda_fp16.h>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantize_grouped.cuh"
#include "backends/cuda/kernels/quantize_tile.cuh"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace quantize_tile;

static_assert(kTile == GroupedColumns::kBlock);
constexpr int kTilesAtOnce = 5;  // as of sources with other inputs than x; not measured

struct TransposeArgs {
  const uint8_t* x = nullptr;        // [rows, columns]
  const float* x_scales = nullptr;   // [rows, columns / 128]
  const int32_t* offsets = nullptr;  // [num_experts + 1]
  int num_experts = 0;
  int64_t rows = 0;
  int64_t columns = 0;          // a multiple of 128
  int64_t width = 0;            // of the copy by columns
  float* row_scales = nullptr;  // [columns / 128, rows]
  CopyArgs column;              // its format is that of x, too
  unsigned long long* tally = nullptr;

  __device__ int64_t num_rounded() const { return offsets[num_experts] * columns; }
};

/// What the functions of a tile see: a matrix that has its rows alone.
struct BlockArgs {
  static constexpr bool kPadsColumns = true;
  int64_t rows = 0;
  int64_t columns = 0;
  CopyArgs column;
  int64_t width = 0;

  __device__ BlockArgs(const TransposeArgs& args, const ColumnBlockRows& mine, int64_t block)
      : rows(mine.count), columns(args.columns), column(args.column), width(args.width) {
    column.data += block * kTile;
    column.scales = static_cast<float*>(column.scales) + block * columns;
  }
  __device__ static int64_t column_rows() { return kTile; }
  __device__ int64_t column_pitch() const { return width; }
};

/// Two elements, times their scale, as bf16.
__device__ uint32_t widened(uint32_t pair, float scale, __nv_fp8_interpretation_t format) {
  const __half2 halves(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), format));
  const float2 values = __half22float2(halves);
  const __nv_bfloat162 both = __floats2bfloat162_rn(values.x * scale, values.y * scale);
  uint32_t word;
  memcpy(&word, &both, sizeof(word));
  return word;
}

__device__ uint4 widened(uint2 elems, float scale, __nv_fp8_interpretation_t format) {
  return {widened(elems.x & 0xFFFFu, scale, format), widened(elems.x >> 16, scale, format),
          widened(elems.y & 0xFFFFu, scale, format), widened(elems.y >> 16, scale, format)};
}

/// Each thread's chunks, and the scales of their rows where products read them.
__device__ void fill_tile(const TransposeArgs& args, const ColumnBlockRows& mine,
                          int64_t tile_column, uint4* tile) {
  const int64_t blocks = args.columns / kTile;
  uint2 elems[kRowsPerThread];
  float scales[kRowsPerThread];
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int64_t row = mine.first + row_of_thread(i);
    if (row_of_thread(i) < mine.count) {
      const int64_t at = row * args.columns + tile_column * kTile + chunk_of_thread() * kVector;
      elems[i] = *reinterpret_cast<const uint2*>(args.x + at);
      scales[i] = args.x_scales[row * blocks + tile_column];
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const bool is_row = row_of_thread(i) < mine.count;
    tile[own_chunk(i)] = is_row ? widened(elems[i], scales[i], args.column.format) : uint4{};
    if (is_row && chunk_of_thread() == 0) {
      args.row_scales[tile_column * args.rows + mine.first + row_of_thread(i)] = scales[i];
    }
  }
}

template <bool kWatch>
__global__ void __launch_bounds__(kThreads, kTilesAtOnce)
    transpose_grouped_kernel(TransposeArgs args) {
  __shared__ uint4 tile[kTile * kChunks];
  __shared__ uint32_t maxima[kWarps];
  const int64_t tiles = args.columns / kTile;
  const int64_t block = blockIdx.x / tiles;
  const ColumnBlockRows mine = rows_of_block(args.offsets, args.num_experts, block);
  Fp8Counter<kWatch> losses;
  if (mine.count > 0) {
    const TilePlace place{.column = blockIdx.x % tiles};
    fill_tile(args, mine, place.column, tile);
    if constexpr (kWatch) {
      losses.largest = larger_bits(max_of_own(tile));
    }
    __syncthreads();
    for (int step = 0; step < kChunks / kWarps; ++step) {
      write_columns<Blocks::kRuns128, true>(BlockArgs(args, mine, block), place,
                                            ColumnPair(tile, step), {}, losses);
    }
  }
  losses.add_to(args.tally, maxima, args.num_rounded());
}

/// Without a copy by columns: a thread for each scale.
__global__ void __launch_bounds__(kThreads) transpose_scales_kernel(TransposeArgs args) {
  const int64_t blocks = args.columns / kTile;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = at % args.rows;
  if (at < blocks * args.rows && row < args.offsets[args.num_experts]) {
    args.row_scales[at] = args.x_scales[row * blocks + at / args.rows];
  }
}

}  // namespace

CudaKernel make_cuda_transpose_grouped(const OpSpec& spec, CudaContext& /*context*/) {
  const OperandSpec& x = spec.operands[0];
  const auto attributes = attributes_of<TransposeGroupedAttributes>(spec);
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  const int64_t width = GroupedColumns::width(x.shape[0], num_experts);
  const TransposeArgs sizes{
      .num_experts = static_cast<int>(num_experts),
      .rows = x.shape[0],
      .columns = x.shape[1],
      .width = width,
      .column = {.format = x.dtype == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3}};
  const int64_t blocks = x.shape[1] / kTile;
  const unsigned grid = attributes.column
                            ? grid_of(width / kTile * blocks)
                            : grid_of(ceil_div(x.shape[0] * blocks, int64_t{kThreads}));
  return {.launch = [=](const CudaKernelArgs& args) {
    TransposeArgs all = sizes;
    all.x = args.data<const uint8_t>(0);
    all.x_scales = args.data<const float>(1);
    all.offsets = args.data<const int32_t>(2);
    all.row_scales = args.data<float>(3);
    auto* kernel = transpose_scales_kernel;
    if (attributes.column) {
      all.column.data = args.data<uint8_t>(4);
      all.column.scales = args.operands[5];
      all.tally = attributes.watch.watch ? args.data<unsigned long long>(6) : nullptr;
      kernel =
          attributes.watch.watch ? transpose_grouped_kernel<true> : transpose_grouped_kernel<false>;
    }
    kernel<<<grid, kThreads, 0, args.stream>>>(all);
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
