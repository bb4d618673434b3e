// Row-major y = x w^T is column-major y^T = w x^T, so cuBLASLt gets the operands in exchanged
// order.
#include "ops/linear.h"

#include <algorithm>
#include <array>
#include <vector>

#include "backends/cuda/kernels/bias_grad.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/gemm.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"

namespace braid {

CudaKernel make_cuda_linear(const OpSpec& spec, CudaContext& context) {
  const OperandSpec& x = spec.operands[0];
  const OperandSpec& w = spec.operands[1];
  const auto attributes = attributes_of<LinearAttributes>(spec);
  const size_t result = attributes.has_bias ? 3 : 2;
  const bool adds_bias = attributes.has_bias && attributes.adds_bias;
  const CudaKernel gemm = make_gemm({.transpose_a = true,
                                     .m = w.shape[0],
                                     .n = x.shape[0],
                                     .k = x.shape[1],
                                     .input = x.dtype,
                                     .output = x.dtype,
                                     .has_bias = adds_bias},
                                    context);
  return {.launch =
              [gemm, result, adds_bias](const CudaKernelArgs& args) {
                std::vector<std::byte*> operands{args.operands[1], args.operands[0]};
                if (adds_bias) {
                  operands.push_back(args.operands[2]);
                }
                operands.push_back(args.operands[result]);
                gemm.launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = gemm.scratch_bytes};
}

CudaKernel make_cuda_linear_dgrad(const OpSpec& spec, CudaContext& context) {
  const OperandSpec& dy = spec.operands[0];
  const OperandSpec& w = spec.operands[1];
  const CudaKernel gemm =
      make_gemm({.m = w.shape[1],
                 .n = dy.shape[0],
                 .k = dy.shape[1],
                 .input = dy.dtype,
                 .output = dy.dtype,
                 .accumulate = attributes_of<LinearDgradAttributes>(spec).accumulate},
                context);
  return {.launch =
              [gemm](const CudaKernelArgs& args) {
                const std::array operands{args.operands[1], args.operands[0], args.operands[2]};
                gemm.launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = gemm.scratch_bytes};
}

// The bias gradient is a separate pass over dy: cuBLASLt's epilogue for it overwrites, and we
// accumulate.
CudaKernel make_cuda_linear_wgrad(const OpSpec& spec, CudaContext& context) {
  const OperandSpec& x = spec.operands[0];
  const OperandSpec& dy = spec.operands[1];
  const auto attributes = attributes_of<LinearWgradAttributes>(spec);
  const FeatureSlice& slice = attributes.features;
  const CudaKernel gemm = make_gemm({.transpose_b = true,
                                     .m = x.shape[1],
                                     .n = spec.operands[2].shape[0],
                                     .k = x.shape[0],
                                     .stride_b = slice.is_all() ? 0 : dy.shape[1],
                                     .input = x.dtype,
                                     .output = spec.operands[2].dtype,
                                     .accumulate = attributes.accumulate},
                                    context);
  const BiasGradArgs sums{.dtype = dy.dtype,
                          .rows = dy.shape[0],
                          .columns = dy.shape[1],
                          .accumulate = attributes.accumulate};
  const size_t sums_bytes =
      attributes.has_bias ? bias_grad_scratch_bytes(sums.rows, sums.columns) : 0;
  return {.launch =
              [gemm, sums, has_bias = attributes.has_bias,
               is_narrow = spec.operands[2].dtype == DType::kBF16 && x.dtype == DType::kBF16,
               skipped_bytes = slice.first_feature * static_cast<int64_t>(dtype_bytes(dy.dtype))](
                  const CudaKernelArgs& args) {
                if (has_bias) {
                  BiasGradArgs bias = sums;
                  bias.dy = args.operands[1];
                  if (is_narrow) {
                    bias.narrow_db = args.data<__nv_bfloat16>(3);
                  } else {
                    bias.db = args.data<float>(3);
                  }
                  bias.scratch = reinterpret_cast<float*>(args.scratch);
                  bias_grad(bias, args.stream);
                }
                const std::array operands{args.operands[0], args.operands[1] + skipped_bytes,
                                          args.operands[2]};
                gemm.launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          // The sums end before the product uses the same memory.
          .scratch_bytes = std::max(sums_bytes, gemm.scratch_bytes)};
}

}  // namespace braid
