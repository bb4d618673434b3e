#include "backends/cuda/kernels/quantize_norm.cuh"

#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"
#include "ops/norm.h"
#include "ops/quantize.h"

// The first kernel goes through rows: sums, statistics and, for one scale, the largest magnitude of
// the result. The second one norms the tiles again and rounds them. It reads what the first one has
// read or written, some of it from cache; one kernel would have to hold 128 rows on chip.
namespace braid::quantize_tile {
namespace {

template <bool kCentred>
NormSource<kCentred> source_of(const NormForwardArgs<Bf16>& norm) {
  return {.a = norm.sum != nullptr ? norm.sum : norm.x,
          .w = norm.w,
          .b = norm.b,
          .mean = norm.mean,
          .rstd = norm.rstd,
          .offset = norm.offset};
}

using NormLaunch = void (*)(const NormForwardArgs<Bf16>&, const QuantizeArgs&, cudaStream_t);

template <Blocks kBlocks, bool kCentred>
void launch_norm_copies(const NormForwardArgs<Bf16>& norm, const QuantizeArgs& args,
                        cudaStream_t stream) {
  launch_copies<kBlocks>(source_of<kCentred>(norm), args, stream);
}

template <bool kCentred>
NormLaunch launch_for_block(int64_t block) {
  return block == 0    ? launch_norm_copies<Blocks::kAll, kCentred>
         : block == 32 ? launch_norm_copies<Blocks::kRuns32, kCentred>
                       : launch_norm_copies<Blocks::kRuns128, kCentred>;
}

}  // namespace

QuantizeLaunch quantize_norm_launch(const OpSpec& spec, const NormForm& form) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  check(!attributes.square, "op {}: no CUDA kernel for squares of {}", spec.op,
        attributes.source.of);
  const Shape x = spec.operands[0].shape;
  check_norm_width<Bf16>(spec, x[1]);
  const auto norm_attributes = attributes_of<NormAttributes>(*quantize_source(spec));
  const NormLaunch launch = form.centred ? launch_for_block<true>(attributes.block)
                                         : launch_for_block<false>(attributes.block);
  return [=, has_one_scale = attributes.block == 0](const CudaKernelArgs& args,
                                                    const QuantizeArgs& quantize) {
    auto norm = norm_operands<Bf16>(form, args);
    norm.rows = x[0];
    norm.width = x[1];
    norm.epsilon = static_cast<float>(norm_attributes.epsilon);
    norm.offset = static_cast<float>(norm_attributes.offset.weight_offset);
    QuantizeArgs copies = quantize;
    if (has_one_scale) {
      norm.magnitudes = reinterpret_cast<uint32_t*>(args.scratch);
      copies.magnitudes = norm.magnitudes;
      BRAID_CUDA_CHECK(
          cudaMemsetAsync(norm.magnitudes, 0, kQuantizeMagnitudes * sizeof(uint32_t), args.stream));
    }
    launch_norm_statistics(form.centred, norm, args.stream);
    launch(norm, copies, args.stream);
  };
}

}  // namespace braid::quantize_tile
