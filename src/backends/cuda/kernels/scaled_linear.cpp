// Row-major y = x w^T is column-major y^T = w x^T, so cuBLASLt gets the factors in exchanged order.
// Both are stored with the dimension of the sum first, column-major: the only form that tensor
// cores of sm_90 multiply in FP8.
#include "ops/scaled_linear.h"

#include <vector>

#include "backends/cuda/kernels/dequantize.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/gemm.h"
#include "backends/cuda/kernels/scaled_product.h"
#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/quantize.h"

namespace braid {
namespace {

/// A product of an op as cuBLASLt's d = a^T b. A factor's scales follow it.
struct ScaledProduct {
  size_t a = 2;
  size_t b = 0;
  size_t result = 4;
  bool a_is_weight = true;
  int64_t block = 128;
  bool adds_bias = false;  ///< operand 4
  bool accumulate = false;
  bool fast_sums = false;

  /// Of operand a or b.
  ScaleLayout layout(size_t factor) const {
    return a_is_weight && factor == a ? ScaleLayout::of_weight(block) : ScaleLayout{.block = block};
  }
  GemmScales scales(size_t factor) const {
    return block == 0              ? GemmScales::kOne
           : layout(factor).square ? GemmScales::kSquares
                                   : GemmScales::kRuns;
  }
};

GemmProblem problem_of(const OpSpec& spec, const ScaledProduct& product) {
  const Shape& a = spec.operands[product.a].shape;
  return {.transpose_a = true,
          .m = a[0],
          .n = spec.operands[product.b].shape[0],
          .k = a[1],
          .output = spec.operands[product.result].dtype,
          .has_bias = product.adds_bias,
          .accumulate = product.accumulate};
}

/// `a` and `b`: the factors and, if they are FP8, their scales.
std::vector<std::byte*> gemm_operands(const CudaKernelArgs& args, const ScaledProduct& product,
                                      const std::vector<std::byte*>& factors) {
  std::vector<std::byte*> operands = factors;
  if (product.adds_bias) {
    operands.push_back(args.operands[4]);
  }
  operands.push_back(args.operands[product.result]);
  return operands;
}

CudaKernel fp8_kernel(const OpSpec& spec, CudaContext& context, const ScaledProduct& product) {
  GemmProblem problem = problem_of(spec, product);
  problem.input = spec.operands[product.a].dtype;
  problem.input_b = spec.operands[product.b].dtype;
  problem.scales_a = product.scales(product.a);
  problem.scales_b = product.scales(product.b);
  problem.fast_sums = product.fast_sums;
  const CudaKernel gemm = make_gemm(problem, context);
  return {.launch =
              [gemm, product](const CudaKernelArgs& args) {
                const std::vector<std::byte*> operands =
                    gemm_operands(args, product,
                                  {args.operands[product.a], args.operands[product.a + 1],
                                   args.operands[product.b], args.operands[product.b + 1]});
                gemm.launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = gemm.scratch_bytes};
}

/// Without pointers.
DequantizeArgs dequantize_args(const OpSpec& spec, const ScaledProduct& product, size_t factor) {
  const OperandSpec& operand = spec.operands[factor];
  return {.format = operand.dtype,
          .layout = product.layout(factor),
          .rows = operand.shape[0],
          .depth = operand.shape[1]};
}

CudaKernel widened_kernel(const OpSpec& spec, CudaContext& context, const ScaledProduct& product) {
  const CudaKernel gemm = make_gemm(problem_of(spec, product), context);
  const WidenedFactors widened(spec, product.block);
  const DequantizeArgs a = dequantize_args(spec, product, product.a);
  const DequantizeArgs b = dequantize_args(spec, product, product.b);
  return {.launch =
              [gemm, product, widened, a, b](const CudaKernelArgs& args) {
                const auto widen = [&](DequantizeArgs factor, size_t operand) {
                  factor.data = args.operands[operand];
                  factor.scales = args.operands[operand + 1];
                  std::byte* const to = args.scratch + (operand == 0 ? 0 : widened.second_at);
                  factor.to = to;
                  dequantize(factor, args.stream);
                  return to;
                };
                const std::vector<std::byte*> operands =
                    gemm_operands(args, product, {widen(a, product.a), widen(b, product.b)});
                gemm.launch({.operands = operands,
                             .scratch = args.scratch + widened.bytes,
                             .stream = args.stream});
              },
          .scratch_bytes = widened.bytes + gemm.scratch_bytes};
}

CudaKernel make_scaled_product(const OpSpec& spec, CudaContext& context,
                               const ScaledProduct& product) {
  return multiplies_fp8(spec, product.block) ? fp8_kernel(spec, context, product)
                                             : widened_kernel(spec, context, product);
}

/// cuBLASLt adds no f32 bias to a product of FP8 factors.
void check_bf16_result(const OpSpec& spec) {
  const DType dtype = spec.operands.back().dtype;
  check(dtype == DType::kBF16, "op {}: no CUDA kernel for {}", spec.op, dtype_name(dtype));
}

}  // namespace

CudaKernel make_cuda_scaled_linear(const OpSpec& spec, CudaContext& context) {
  check_bf16_result(spec);
  const auto attributes = attributes_of<ScaledLinearAttributes>(spec);
  return make_scaled_product(spec, context,
                             {.result = spec.operands.size() - 1,
                              .block = attributes.block,
                              .adds_bias = attributes.has_bias && attributes.adds_bias,
                              .fast_sums = attributes.block == 0});
}

CudaKernel make_cuda_scaled_linear_dgrad(const OpSpec& spec, CudaContext& context) {
  check_bf16_result(spec);
  return make_scaled_product(spec, context,
                             {.block = attributes_of<ScaledLinearDgradAttributes>(spec).block});
}

// dw [M,K] = dy^T x: x^T has the rows of cuBLASLt's result.
CudaKernel make_cuda_scaled_linear_wgrad(const OpSpec& spec, CudaContext& context) {
  const auto attributes = attributes_of<ScaledLinearWgradAttributes>(spec);
  return make_scaled_product(spec, context,
                             {.a = 0,
                              .b = 2,
                              .a_is_weight = false,
                              .block = attributes.block,
                              .accumulate = attributes.accumulate});
}

}  // namespace braid
