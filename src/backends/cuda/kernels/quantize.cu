// Largest magnitudes are integer maxima of the bits of |x|, which order as the values do, with
// infinity and NaN above all numbers; so they are exact in any order.
#include "ops/quantize.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantize_tile.cuh"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace quantize_tile;

// ---- the largest magnitude of x

constexpr int kMagnitudeThreads = 512;  // two blocks of 64 registers per thread on a multiprocessor

/// magnitudes[block]: the largest among elements that depend on the block's number.
template <bool kAligned>
__global__ void __launch_bounds__(kMagnitudeThreads)
    magnitudes_kernel(const Bf16* __restrict__ x, int64_t elems, uint32_t* magnitudes) {
  constexpr int kLoads = 8;  // in flight
  __shared__ uint32_t maxima[kMagnitudeThreads / 32];
  const int64_t first = int64_t{blockIdx.x} * kMagnitudeThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kMagnitudeThreads;
  const int64_t vectors = kAligned ? elems / kVector : 0;
  uint32_t most = 0;
  for (int64_t i = first; i < vectors; i += kLoads * step) {
    uint4 pairs[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int64_t at = i + load * step;
      pairs[load] = at < vectors ? reinterpret_cast<const uint4*>(x)[at] : uint4{};
    }
#pragma unroll
    for (const uint4& four : pairs) {
      most = larger_of_pairs(
          larger_of_pairs(most, magnitudes_of(four.x)),
          larger_of_pairs(larger_of_pairs(magnitudes_of(four.y), magnitudes_of(four.z)),
                          magnitudes_of(four.w)));
    }
  }
  for (int64_t i = vectors * kVector + first; i < elems; i += step) {
    most = larger_of_pairs(most, magnitudes_of(__bfloat16_as_ushort(x[i])));
  }
  const uint32_t total = block_max(larger_bits(most), maxima);
  if (threadIdx.x == 0) {
    magnitudes[blockIdx.x] = total;
  }
}

template <bool kAligned>
void find_magnitudes(const Bf16* x, int64_t elems, uint32_t* magnitudes, cudaStream_t stream) {
  magnitudes_kernel<kAligned>
      <<<grid_of(kQuantizeMagnitudes), kMagnitudeThreads, 0, stream>>>(x, elems, magnitudes);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <Blocks kBlocks, bool kAligned>
void launch_blocks(const QuantizeArgs& args, cudaStream_t stream) {
  const unsigned tiles = grid_of(ceil_div(args.rows, kTile) * ceil_div(args.columns, kTile));
  const auto kernel = args.tally == nullptr ? quantize_kernel<kBlocks, kAligned, false>
                                            : quantize_kernel<kBlocks, kAligned, true>;
  kernel<<<tiles, kThreads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

/// Whole vectors everywhere: of rows of x and the row copy, and of rows of the column copy.
bool has_whole_vectors(const QuantizeArgs& args) {
  return args.columns % kVector == 0 && args.rows % kColumnRows == 0 &&
         all_aligned(16, {args.x, args.row.data, args.column.data});
}

template <Blocks kBlocks>
void launch(QuantizeArgs args, uint32_t* magnitudes, cudaStream_t stream) {
  const bool is_aligned = has_whole_vectors(args);
  if constexpr (kBlocks == Blocks::kAll) {
    const auto find = is_aligned ? find_magnitudes<true> : find_magnitudes<false>;
    find(args.x, args.rows * args.columns, magnitudes, stream);
    args.magnitudes = magnitudes;
  }
  (is_aligned ? launch_blocks<kBlocks, true> : launch_blocks<kBlocks, false>)(args, stream);
}

using Launch = void (*)(QuantizeArgs, uint32_t*, cudaStream_t);

Launch launch_for(const QuantizeAttributes& attributes) {
  if (attributes.square) {
    return launch<Blocks::kSquares>;
  }
  return attributes.block == 0    ? launch<Blocks::kAll>
         : attributes.block == 32 ? launch<Blocks::kRuns32>
                                  : launch<Blocks::kRuns128>;
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

unsigned long long* tally_of(const CudaKernelArgs& args, int at) {
  return at < 0 ? nullptr : args.data<unsigned long long>(static_cast<size_t>(at));
}

DType format_of(const OpSpec& spec, int at) {
  return at < 0 ? DType::kF8E4M3 : spec.operands[static_cast<size_t>(at)].dtype;
}

}  // namespace

CudaKernel make_cuda_quantize(const OpSpec& spec, CudaContext& /*context*/) {
  const OperandSpec& x = spec.operands[0];
  check(x.dtype == DType::kBF16, "op {}: no CUDA kernel for {}", spec.op, dtype_name(x.dtype));
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  const QuantizeOperands at(attributes);
  const QuantizeScratch scratch(x.shape[0], x.shape[1], attributes.block, attributes.has_bias);
  return {.launch =
              [=, shape = x.shape, row_format = format_of(spec, at.row),
               column_format = format_of(spec, at.column),
               launch = launch_for(attributes)](const CudaKernelArgs& args) {
                float* const sums = reinterpret_cast<float*>(args.scratch + scratch.sums_at);
                launch({.x = args.data<const Bf16>(0),
                        .rows = shape[0],
                        .columns = shape[1],
                        .row = copy_args(args, at.row, row_format),
                        .column = copy_args(args, at.column, column_format),
                        .sums = attributes.has_bias ? sums : nullptr,
                        .tally = tally_of(args, at.tally)},
                       reinterpret_cast<uint32_t*>(args.scratch), args.stream);
                if (attributes.has_bias) {
                  launch_column_sums({.partials = sums,
                                      .sums = args.data<float>(static_cast<size_t>(at.db)),
                                      .width = shape[1],
                                      .num_partials = static_cast<int>(ceil_div(shape[0], kTile)),
                                      .accumulate = attributes.accumulate},
                                     {}, args.stream);
                }
              },
          .scratch_bytes = scratch.bytes};
}

}  // namespace braid
