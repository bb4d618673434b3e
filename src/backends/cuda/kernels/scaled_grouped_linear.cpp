// On Hopper by scaled_grouped_sm90.h. Otherwise both factors are converted to bf16 in scratch,
// which is exact, and multiplied by the product of experts with bf16 factors: correct, and slower
// than that product alone.
#include "ops/scaled_grouped_linear.h"

#include <array>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernels/dequantize.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/scaled_grouped_sm90.h"
#include "backends/cuda/kernels/scaled_product.h"
#include "backends/cuda/kernels/wide_result.h"
#include "backends/cuda/kernels/widen_columns.h"
#include "base/errors.h"
#include "ops/attributes.h"
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

int64_t count_experts(const OpSpec& spec) {
  return spec.operands[kOffsets].shape[0] - 1;
}

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
                 .num_experts = static_cast<int>(count_experts(spec)),
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

CudaKernel make_rows_sm90(const OpSpec& spec, CudaContext& context, bool is_dgrad) {
  const Shape& a = spec.operands[0].shape;
  const ScaledGroupedRows shapes{.experts_divide_depth = is_dgrad,
                                 .num_experts = count_experts(spec),
                                 .rows = a[0],
                                 .columns = spec.operands[kResult].shape[1],
                                 .depth = a[1]};
  return {.launch = [shapes, sms = context.product_sms()](const CudaKernelArgs& args) {
    ScaledGroupedRows product = shapes;
    product.a = args.operands[0];
    product.a_scales = args.data<const float>(1);
    product.b = args.operands[2];
    product.b_scales = args.data<const float>(3);
    product.offsets = args.data<const int32_t>(kOffsets);
    product.c = args.data<__nv_bfloat16>(kResult);
    launch_scaled_grouped(product, sms, args.stream);
  }};
}

CudaKernel make_columns_sm90(const OpSpec& spec, CudaContext& context) {
  const Shape& x = spec.operands[0].shape;
  const ScaledGroupedColumns shapes{
      .num_experts = count_experts(spec),
      .rows = spec.operands[2].shape[0],
      .columns = x[0],
      .width = x[1],
      .accumulate = attributes_of<ScaledGroupedWgradAttributes>(spec).accumulate};
  return {.launch = [shapes, sms = context.product_sms()](const CudaKernelArgs& args) {
    ScaledGroupedColumns product = shapes;
    product.a = args.operands[2];
    product.a_scales = args.data<const float>(3);
    product.b = args.operands[0];
    product.b_scales = args.data<const float>(1);
    product.offsets = args.data<const int32_t>(kOffsets);
    product.c = args.data<float>(kResult);
    launch_scaled_grouped(product, sms, args.stream);
  }};
}

void check_bf16_result(const OpSpec& spec) {
  const DType dtype = spec.operands.back().dtype;
  check(dtype == DType::kBF16, "op {}: no CUDA kernel for {}", spec.op, dtype_name(dtype));
}

}  // namespace

CudaKernel make_cuda_scaled_grouped_linear(const OpSpec& spec, CudaContext& context) {
  check_bf16_result(spec);
  return multiplies_grouped_fp8(spec)
             ? make_rows_sm90(spec, context, /*is_dgrad=*/false)
             : make_widened(spec, context, {Factor{.at = 0}, Factor{.at = 2, .is_weight = true}},
                            make_cuda_grouped_linear);
}

CudaKernel make_cuda_scaled_grouped_linear_dgrad(const OpSpec& spec, CudaContext& context) {
  check_bf16_result(spec);
  return multiplies_grouped_fp8(spec)
             ? make_rows_sm90(spec, context, /*is_dgrad=*/true)
             : make_widened(
                   spec, context,
                   {Factor{.at = 0}, Factor{.at = 2, .is_weight = true, .is_transposed = true}},
                   make_cuda_grouped_linear_dgrad);
}

CudaKernel make_cuda_scaled_grouped_linear_wgrad(const OpSpec& spec, CudaContext& context) {
  if (!multiplies_grouped_fp8(spec)) {
    return make_widened(
        spec, context,
        {Factor{.at = 0, .is_transposed = true}, Factor{.at = 2, .is_transposed = true}},
        make_cuda_grouped_linear_wgrad);
  }
  const auto make = [&](const OpSpec& wide) { return make_columns_sm90(wide, context); };
  return spec.operands[kResult].dtype == DType::kBF16 ? with_wide_result(spec, kResult, make)
                                                      : make(spec);
}

}  // namespace braid
