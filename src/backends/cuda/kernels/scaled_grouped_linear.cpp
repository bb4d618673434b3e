// Both factors are converted to bf16 in scratch, which is exact, and multiplied by the product of
// experts with bf16 factors. Correct, and slower than that product alone.
#include "ops/scaled_grouped_linear.h"

#include <array>

#include "backends/cuda/kernels/dequantize.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/scaled_product.h"
#include "backends/cuda/kernels/widen_columns.h"
#include "base/errors.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

constexpr size_t kOffsets = 4;
constexpr size_t kResult = 5;

/// A factor, operand `at` of a spec, and its form.
struct Factor {
  size_t at = 0;
  bool is_weight = false;
  bool is_transposed = false;  ///< the product reads its columns as rows
};

void widen(const OpSpec& spec, const Factor& factor, const CudaKernelArgs& args, void* to) {
  const OperandSpec& operand = spec.operands[factor.at];
  if (!factor.is_transposed) {
    dequantize({.data = args.operands[factor.at],
                .scales = args.operands[factor.at + 1],
                .format = operand.dtype,
                .layout = {.block = GroupedColumns::kBlock, .square = factor.is_weight},
                .rows = operand.shape[0],
                .depth = operand.shape[1],
                .to = to},
               args.stream);
    return;
  }
  widen_columns({.data = args.operands[factor.at],
                 .scales = args.data<const float>(factor.at + 1),
                 .format = operand.dtype,
                 .square = factor.is_weight,
                 .features = operand.shape[0],
                 .columns = operand.shape[1],
                 .offsets = factor.is_weight ? nullptr : args.data<const int32_t>(kOffsets),
                 .num_experts = static_cast<int>(spec.operands[kOffsets].shape[0] - 1),
                 .to = to},
                args.stream);
}

using MakeProduct = CudaKernel (*)(const OpSpec&, CudaContext&);

CudaKernel make_widened(const OpSpec& spec, CudaContext& context,
                        const std::array<Factor, 2>& factors, MakeProduct make_product) {
  const WidenedGroupedProduct widened(spec);
  const CudaKernel product = make_product(widened.product, context);
  return {.launch =
              [=](const CudaKernelArgs& args) {
                std::byte* const first = args.scratch;
                std::byte* const second = args.scratch + widened.second_at;
                widen(spec, factors[0], args, first);
                widen(spec, factors[1], args, second);
                const std::array operands{first, second, args.operands[kOffsets],
                                          args.operands[kResult]};
                product.launch({.operands = operands,
                                .scratch = args.scratch + widened.bytes,
                                .stream = args.stream});
              },
          .scratch_bytes = widened.bytes + product.scratch_bytes};
}

void check_bf16_result(const OpSpec& spec) {
  const DType dtype = spec.operands.back().dtype;
  check(dtype == DType::kBF16, "op {}: no CUDA kernel for {}", spec.op, dtype_name(dtype));
}

}  // namespace

CudaKernel make_cuda_scaled_grouped_linear(const OpSpec& spec, CudaContext& context) {
  check_bf16_result(spec);
  return make_widened(spec, context, {Factor{.at = 0}, Factor{.at = 2, .is_weight = true}},
                      make_cuda_grouped_linear);
}

CudaKernel make_cuda_scaled_grouped_linear_dgrad(const OpSpec& spec, CudaContext& context) {
  check_bf16_result(spec);
  return make_widened(spec, context,
                      {Factor{.at = 0}, Factor{.at = 2, .is_weight = true, .is_transposed = true}},
                      make_cuda_grouped_linear_dgrad);
}

CudaKernel make_cuda_scaled_grouped_linear_wgrad(const OpSpec& spec, CudaContext& context) {
  return make_widened(
      spec, context,
      {Factor{.at = 0, .is_transposed = true}, Factor{.at = 2, .is_transposed = true}},
      make_cuda_grouped_linear_wgrad);
}

}  // namespace braid
