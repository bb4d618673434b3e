// The two kernels one behind the other on the stream.
#include "ops/linear_swiglu.h"

#include <algorithm>
#include <array>

#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/scratch_sizes.h"

namespace braid {

CudaKernel make_cuda_linear_swiglu(const OpSpec& spec, CudaContext& context) {
  const ProductAndActivation parts = unfused(spec);
  const CudaKernel product = make_cuda_linear(parts.product, context);
  const CudaKernel activation = make_cuda_swiglu(parts.activation, context);
  return {.launch =
              [product, activation](const CudaKernelArgs& args) {
                product.launch({.operands = args.operands.first(3),
                                .scratch = args.scratch,
                                .stream = args.stream});
                activation.launch({.operands = args.operands.last(2),
                                   .scratch = args.scratch,
                                   .stream = args.stream});
              },
          .scratch_bytes = std::max(product.scratch_bytes, activation.scratch_bytes)};
}

CudaKernel make_cuda_linear_dgrad_swiglu_backward(const OpSpec& spec, CudaContext& context) {
  const ProductAndActivation parts = unfused(spec);
  const CudaKernel product = make_cuda_linear_dgrad(parts.product, context);
  const CudaKernel activation = make_cuda_swiglu_backward(parts.activation, context);
  const OperandSpec& handed_on = parts.product.operands[2];
  const size_t d_h_bytes = product_in_scratch_bytes(handed_on.shape[0], handed_on.shape[1],
                                                    dtype_bytes(handed_on.dtype));
  return {.launch =
              [product, activation, d_h_bytes](const CudaKernelArgs& args) {
                std::byte* const d_h = args.scratch;
                std::byte* const scratch = args.scratch + d_h_bytes;
                const std::array product_operands{args.operands[0], args.operands[1], d_h};
                product.launch(
                    {.operands = product_operands, .scratch = scratch, .stream = args.stream});
                const std::array activation_operands{args.operands[2], d_h, args.operands[3]};
                activation.launch(
                    {.operands = activation_operands, .scratch = scratch, .stream = args.stream});
              },
          .scratch_bytes = d_h_bytes + std::max(product.scratch_bytes, activation.scratch_bytes)};
}

}  // namespace braid
