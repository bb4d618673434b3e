// A tile (quantize_tile.cuh) has rows of one expert: those that share scales in the copy by
// columns.
#include "ops/quantize_grouped.h"

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
constexpr int kTilesAtOnce = StoredSource::kTilesAtOnce;

struct GroupedArgs {
  const Bf16* x = nullptr;           // [rows, columns]
  const int32_t* offsets = nullptr;  // [num_experts + 1]
  int num_experts = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 128
  int64_t width = 0;    // of the copy by columns
  CopyArgs row;
  CopyArgs column;
  unsigned long long* tally = nullptr;

  __device__ int64_t num_rounded() const {
    const int copies = (row.data != nullptr ? 1 : 0) + (column.data != nullptr ? 1 : 0);
    return copies * offsets[num_experts] * columns;
  }
};

/// What the functions of a tile see: a matrix that has its rows alone.
struct BlockArgs {
  static constexpr bool kPadsColumns = true;
  int64_t rows = 0;
  int64_t columns = 0;
  CopyArgs row;
  CopyArgs column;
  int64_t width = 0;
  int64_t all_rows = 0;

  __device__ BlockArgs(const GroupedArgs& args, const ColumnBlockRows& mine, int64_t block)
      : rows(mine.count),
        columns(args.columns),
        row(args.row),
        column(args.column),
        width(args.width),
        all_rows(args.rows) {
    if (row.data != nullptr) {
      row.data += mine.first * columns;
      row.scales = static_cast<float*>(row.scales) + mine.first;
    }
    if (column.data != nullptr) {
      column.data += block * kTile;
      column.scales = static_cast<float*>(column.scales) + block * columns;
    }
  }
  __device__ static int64_t column_rows() { return kTile; }
  __device__ int64_t column_pitch() const { return width; }
  __device__ int64_t scale_pitch() const { return all_rows; }
};

template <bool kWatch>
__device__ void quantize_block(const GroupedArgs& args, const ColumnBlockRows& mine, int64_t block,
                               int64_t tile_column, uint4* tile, Fp8Counter<kWatch>& losses) {
  const BlockArgs own(args, mine, block);
  const TilePlace place{.column = tile_column};
  copy_tile(args.x + mine.first * args.columns, own, place, tile);
  ptx::wait_for_copies<0>();
  if constexpr (kWatch) {
    losses.largest = larger_bits(max_of_own(tile));
  }
  if (own.row.data != nullptr) {
    write_rows<Blocks::kRuns128, true>(own, place, tile, {}, losses);
  }
  if (own.column.data != nullptr) {
    __syncthreads();
    for (int step = 0; step < kChunks / kWarps; ++step) {
      write_columns<Blocks::kRuns128, true>(own, place, ColumnPair(tile, step), {}, losses);
    }
  }
}

template <bool kWatch>
__global__ void __launch_bounds__(kThreads, kTilesAtOnce)
    quantize_grouped_kernel(GroupedArgs args) {
  __shared__ uint4 tile[kTile * kChunks];
  __shared__ uint32_t maxima[kWarps];
  // From the last tile to the first, as in quantize_kernel.
  const int64_t index = int64_t{gridDim.x} - 1 - blockIdx.x;
  const int64_t tiles = args.columns / kTile;
  const int64_t block = index / tiles;
  const ColumnBlockRows mine = rows_of_block(args.offsets, args.num_experts, block);
  Fp8Counter<kWatch> losses;
  if (mine.count > 0) {
    quantize_block(args, mine, block, index % tiles, tile, losses);
  }
  losses.add_to(args.tally, maxima, args.num_rounded());
}

CopyArgs copy_args(const CudaKernelArgs& args, int at, DType format) {
  if (at < 0) {
    return {};
  }
  const auto operand = static_cast<size_t>(at);
  return {.data = args.data<uint8_t>(operand),
          .scales = args.operands[operand + 1],
          .format = format == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3};
}

DType format_of(const OpSpec& spec, int at) {
  return at < 0 ? DType::kF8E4M3 : spec.operands[static_cast<size_t>(at)].dtype;
}

}  // namespace

CudaKernel make_cuda_quantize_grouped(const OpSpec& spec, CudaContext& /*context*/) {
  const OperandSpec& x = spec.operands[0];
  check(x.dtype == DType::kBF16 && x.shape[1] % kTile == 0, "op {}: no CUDA kernel for {} {}",
        spec.op, dtype_name(x.dtype), to_string(x.shape));
  const QuantizeGroupedOperands at(attributes_of<QuantizeGroupedAttributes>(spec));
  const int64_t num_experts = spec.operands[1].shape[0] - 1;
  const int64_t width = GroupedColumns::width(x.shape[0], num_experts);
  const GroupedArgs sizes{.num_experts = static_cast<int>(num_experts),
                          .rows = x.shape[0],
                          .columns = x.shape[1],
                          .width = width};
  const unsigned grid = grid_of(width / kTile * (x.shape[1] / kTile));
  return {.launch = [=, row_format = format_of(spec, at.row),
                     column_format = format_of(spec, at.column)](const CudaKernelArgs& args) {
    GroupedArgs all = sizes;
    all.x = args.data<const Bf16>(0);
    all.offsets = args.data<const int32_t>(1);
    all.row = copy_args(args, at.row, row_format);
    all.column = copy_args(args, at.column, column_format);
    all.tally =
        at.tally < 0 ? nullptr : args.data<unsigned long long>(static_cast<size_t>(at.tally));
    const auto kernel =
        all.tally == nullptr ? quantize_grouped_kernel<false> : quantize_grouped_kernel<true>;
    kernel<<<grid, kThreads, 0, args.stream>>>(all);
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
