// Largest magnitudes are integer maxima of the bits of |x|, which order as the values do, with
// infinity and NaN above all numbers; so they are exact in any order.
#include "ops/quantize.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantize_launch.cuh"
#include "backends/cuda/kernels/quantize_norm.cuh"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace quantize_tile;

// ---- the largest magnitude of x

constexpr int kMagnitudeThreads = 512;  // two blocks of 64 registers per thread on a multiprocessor

/// magnitudes[block]: the largest among elements that depend on the block's number.
template <bool kAligned, class Source>
__global__ void __launch_bounds__(kMagnitudeThreads)
    magnitudes_kernel(Source source, int64_t elems, uint32_t* magnitudes) {
  constexpr int kLoads = Source::kLoadsInFlight;
  __shared__ uint32_t maxima[kMagnitudeThreads / 32];
  const int64_t first = int64_t{blockIdx.x} * kMagnitudeThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kMagnitudeThreads;
  const int64_t chunks = (elems + kVector - 1) / kVector;
  uint32_t most = 0;
  for (int64_t i = first; i < chunks; i += kLoads * step) {
    typename Source::Inputs inputs[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int64_t at = (i + load * step) * kVector;
      if (at < elems) {
        inputs[load] = source.template load<kAligned>(at, elems - at);
      }
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int64_t at = (i + load * step) * kVector;
      if (at < elems) {
        most = larger_of_pairs(
            most, max_of_chunk(first_elems<kAligned>(source.result(inputs[load]), elems - at)));
      }
    }
  }
  const uint32_t total = block_max(larger_bits(most), maxima);
  if (threadIdx.x == 0) {
    magnitudes[blockIdx.x] = total;
  }
}

template <bool kAligned, class Source>
void find_magnitudes(const Source& source, int64_t elems, uint32_t* magnitudes,
                     cudaStream_t stream) {
  magnitudes_kernel<kAligned>
      <<<grid_of(kQuantizeMagnitudes), kMagnitudeThreads, 0, stream>>>(source, elems, magnitudes);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <Blocks kBlocks, class Source>
void launch(const Source& source, QuantizeArgs args, uint32_t* magnitudes, cudaStream_t stream) {
  if constexpr (kBlocks == Blocks::kAll) {
    const auto find = has_whole_chunks(source, args) ? find_magnitudes<true, Source>
                                                     : find_magnitudes<false, Source>;
    find(source, args.rows * args.columns, magnitudes, stream);
    args.magnitudes = magnitudes;
  }
  launch_copies<kBlocks>(source, args, stream);
}

/// Of a source whose inputs are the first operands.
template <Blocks kBlocks, class Source>
void launch_source(const CudaKernelArgs& args, const QuantizeArgs& quantize) {
  Source source;
  source.a = reinterpret_cast<decltype(source.a)>(args.operands[0]);
  if constexpr (Source::kIsBinary) {
    source.b = reinterpret_cast<decltype(source.b)>(args.operands[1]);
  }
  launch<kBlocks>(source, quantize, reinterpret_cast<uint32_t*>(args.scratch), args.stream);
}

template <class Source>
QuantizeLaunch launch_for(const OpSpec& spec, const QuantizeAttributes& attributes) {
  if (attributes.square) {
    check(Source::kIsStored, "op {}: no CUDA kernel for squares of {}", spec.op,
          attributes.source.of);
    return attributes.block == 32 ? launch_source<Blocks::kSquares32, StoredSource>
                                  : launch_source<Blocks::kSquares, StoredSource>;
  }
  return attributes.block == 0    ? launch_source<Blocks::kAll, Source>
         : attributes.block == 32 ? launch_source<Blocks::kRuns32, Source>
                                  : launch_source<Blocks::kRuns128, Source>;
}

QuantizeLaunch launch_for_main_weights(const OpSpec& spec, const QuantizeAttributes& attributes) {
  check(attributes.square || attributes.block != 128, "op {}: no weight has runs of {}", spec.op,
        attributes.block);
  if (attributes.block == 32) {
    return attributes.square ? launch_source<Blocks::kSquares32, MainWeightSource>
                             : launch_source<Blocks::kRuns32, MainWeightSource>;
  }
  return attributes.square ? launch_source<Blocks::kSquares, MainWeightSource>
                           : launch_source<Blocks::kAll, MainWeightSource>;
}

using BfGateUp = GateUp<Bf16>;

struct SourceEntry {
  std::string_view op;
  QuantizeLaunch (*launch)(const OpSpec&, const QuantizeAttributes&);
};

template <bool kCentred, bool kAdds>
QuantizeLaunch launch_for_norm(const OpSpec& spec, const QuantizeAttributes& /*attributes*/) {
  return quantize_norm_launch(spec, {.centred = kCentred, .adds = kAdds, .stores_y = false});
}

/// The kernels of the ops that have SourceTraits; "": of a stored x.
constexpr SourceEntry kSources[] = {
    {"", launch_for<StoredSource>},
    {"swiglu", launch_for<MapSource<false, Swiglu<Bf16>, BfGateUp, Bf16>>},
    {"swiglu_backward",
     launch_for<MapSource<true, SwigluBackward<Bf16>, BfGateUp, BfGateUp, Bf16>>},
    {"geglu", launch_for<MapSource<false, Geglu<Bf16>, BfGateUp, Bf16>>},
    {"geglu_backward", launch_for<MapSource<true, GegluBackward<Bf16>, BfGateUp, BfGateUp, Bf16>>},
    {"gelu", launch_for<MapSource<false, Gelu<Bf16>, Bf16, Bf16>>},
    {"gelu_backward", launch_for<MapSource<true, GeluBackward<Bf16>, Bf16, Bf16>>},
    {"relu2", launch_for<MapSource<false, Relu2<Bf16>, Bf16, Bf16>>},
    {"relu2_backward", launch_for<MapSource<true, Relu2Backward<Bf16>, Bf16, Bf16>>},
    {"rmsnorm", launch_for_norm<false, false>},
    {"add_rmsnorm", launch_for_norm<false, true>},
    {"layernorm", launch_for_norm<true, false>},
    {"add_layernorm", launch_for_norm<true, true>},
};

QuantizeLaunch find_launch(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  if (attributes.rounds.main_weights) {
    return launch_for_main_weights(spec, attributes);
  }
  const auto* const found = std::ranges::find(kSources, attributes.source.of, &SourceEntry::op);
  check(found != std::end(kSources), "op {}: no CUDA kernel with {}", spec.op,
        attributes.source.of);
  return found->launch(spec, attributes);
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
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  check(x.dtype == DType::kBF16 || attributes.rounds.main_weights, "op {}: no CUDA kernel for {}",
        spec.op, dtype_name(x.dtype));
  const QuantizeOperands at(attributes);
  const Shape shape = quantized_value(spec).shape;
  const QuantizeScratch scratch(shape[0], shape[1], attributes.block, attributes.has_bias);
  return {.launch =
              [=, row_format = format_of(spec, at.row), column_format = format_of(spec, at.column),
               launch = find_launch(spec)](const CudaKernelArgs& args) {
                float* const sums = reinterpret_cast<float*>(args.scratch + scratch.sums_at);
                launch(args, {.rows = shape[0],
                              .columns = shape[1],
                              .row = copy_args(args, at.row, row_format),
                              .column = copy_args(args, at.column, column_format),
                              .sums = attributes.has_bias ? sums : nullptr,
                              .tally = tally_of(args, at.tally)});
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
