// A block of threads owns 128 columns of the rows that share scales in the copy by columns, so it
// reads x once for both copies. Magnitudes are compared as integers, so the copies have the bits of
// the CPU's. The tile lies in shared memory as words of two columns. The number of four rows is
// XORed into a word's place, so that reads along a column have no bank conflicts.
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

constexpr int kBlock = static_cast<int>(GroupedColumns::kBlock);
constexpr int kLaneElems = kBlock / 32;  // of a row, or of a column, for each lane of a warp
constexpr int kPairs = kBlock / 2;       // words of a row of the tile
constexpr int kRowsAtOnce = 4;           // that a warp loads before it rounds them

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

/// The tile of a block of threads.
struct GroupedTile {
  int64_t block = 0;   // of columns of the copy by columns
  int64_t column = 0;  // the first one, of x
  ColumnBlockRows rows;
};

/// Of the tile: where two columns of a row are.
__device__ int place_of(int row, int pair) {
  return row * kPairs + (pair ^ (row / kLaneElems));
}

/// Of the lane's elements of a row.
__device__ int64_t elem_of(const GroupedArgs& args, const GroupedTile& tile, int r) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return (tile.rows.first + r) * args.columns + tile.column + lane * kLaneElems;
}

/// One row by one warp, which has its elements; they also go to the tile.
template <bool kWatch>
__device__ void write_row(const GroupedArgs& args, const GroupedTile& tile, int r, uint2 pairs,
                          uint32_t* words, Fp8Counter<kWatch>& losses) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  words[place_of(r, 2 * lane)] = pairs.x;
  words[place_of(r, 2 * lane + 1)] = pairs.y;
  const uint32_t most =
      larger_bits(lanes_max<32>(larger_of_pairs(magnitudes_of(pairs.x), magnitudes_of(pairs.y))));
  if constexpr (kWatch) {
    losses.largest = max(losses.largest, most);
  }
  if (args.row.data == nullptr) {
    return;
  }
  const int exponent = exponent_of(most, args.row.format);
  if (lane == 0) {
    store_scale<Blocks::kRuns128>(args.row.scales,
                                  tile.column / kBlock * args.rows + tile.rows.first + r, exponent);
  }
  const float factor = factor_of(exponent);
  *reinterpret_cast<uint32_t*>(args.row.data + elem_of(args, tile, r)) =
      rounded(low_of(pairs.x), high_of(pairs.x), factor, args.row.format, losses) |
      rounded(low_of(pairs.y), high_of(pairs.y), factor, args.row.format, losses) << 16;
}

template <bool kWatch>
__device__ void write_rows(const GroupedArgs& args, const GroupedTile& tile, uint32_t* words,
                           Fp8Counter<kWatch>& losses) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int first = warp; first < tile.rows.count; first += kRowsAtOnce * kWarps) {
    uint2 pairs[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int r = first + i * kWarps;
      if (r < tile.rows.count) {
        pairs[i] = *reinterpret_cast<const uint2*>(args.x + elem_of(args, tile, r));
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int r = first + i * kWarps;
      if (r < tile.rows.count) {  // the same for all lanes
        write_row(args, tile, r, pairs[i], words, losses);
      }
    }
  }
}

/// Two adjacent columns by one warp: each lane has four rows. Rows that the expert lacks are zero.
template <bool kWatch>
__device__ void write_column_pair(const GroupedArgs& args, const GroupedTile& tile, int pair,
                                  const uint32_t* words, Fp8Counter<kWatch>& losses) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t pairs[kLaneElems];
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < kLaneElems; ++j) {
    const int r = lane * kLaneElems + j;
    pairs[j] = r < tile.rows.count ? words[place_of(r, pair)] : 0u;
    most = larger_of_pairs(most, magnitudes_of(pairs[j]));
  }
  most = lanes_max<32>(most);
  const int valid = min(max(tile.rows.count - lane * kLaneElems, 0), kLaneElems);
  const uint32_t mask = valid == kLaneElems ? 0xFFFFFFFFu : (1u << (8 * valid)) - 1;
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    const int64_t column = tile.column + 2 * pair + second;
    const int exponent =
        exponent_of(second != 0 ? most & 0xFFFF0000u : most << 16, args.column.format);
    if (lane == 0) {
      store_scale<Blocks::kRuns128>(args.column.scales, tile.block * args.columns + column,
                                    exponent);
    }
    const float factor = factor_of(exponent);
    const auto elem = [&](int j) { return second != 0 ? high_of(pairs[j]) : low_of(pairs[j]); };
    const uint32_t bytes = rounded(elem(0), elem(1), factor, args.column.format, losses) |
                           rounded(elem(2), elem(3), factor, args.column.format, losses) << 16;
    *reinterpret_cast<uint32_t*>(args.column.data + column * args.width + tile.block * kBlock +
                                 lane * kLaneElems) = bytes & mask;
  }
}

template <bool kWatch>
__global__ void __launch_bounds__(kThreads) quantize_grouped_kernel(GroupedArgs args) {
  __shared__ uint32_t words[kBlock * kPairs];
  __shared__ uint32_t maxima[kWarps];
  const int64_t tiles = args.columns / kBlock;
  GroupedTile tile{.block = blockIdx.x / tiles, .column = blockIdx.x % tiles * kBlock};
  tile.rows = rows_of_block(args.offsets, args.num_experts, tile.block);
  Fp8Counter<kWatch> losses;
  write_rows(args, tile, words, losses);
  if (args.column.data != nullptr && tile.rows.count > 0) {
    __syncthreads();
    for (int pair = static_cast<int>(threadIdx.x) / 32; pair < kPairs; pair += kWarps) {
      write_column_pair(args, tile, pair, words, losses);
    }
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
  check(x.dtype == DType::kBF16 && x.shape[1] % kBlock == 0, "op {}: no CUDA kernel for {} {}",
        spec.op, dtype_name(x.dtype), to_string(x.shape));
  const QuantizeGroupedOperands at(attributes_of<QuantizeGroupedAttributes>(spec));
  const int64_t num_experts = spec.operands[1].shape[0] - 1;
  const int64_t width = GroupedColumns::width(x.shape[0], num_experts);
  const GroupedArgs sizes{.num_experts = static_cast<int>(num_experts),
                          .rows = x.shape[0],
                          .columns = x.shape[1],
                          .width = width};
  const unsigned grid = grid_of(width / kBlock * (x.shape[1] / kBlock));
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
