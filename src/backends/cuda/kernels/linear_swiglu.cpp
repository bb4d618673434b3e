// One kernel, if this build has one for the operands; otherwise the two kernels one after the other
// on the stream. In the forward the two kernels are also used if they are faster. In the backward
// they never are (bench/notes.md, "Matrix products and attention"), and they would need memory for
// d_h, which is counted before a device is available.
#include "backends/cuda/kernels/linear_swiglu.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/fastest_kernel.h"
#include "backends/cuda/kernels/fused_kernels.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/cuda/kernels/sm90_products.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"

namespace braid {
namespace {

using MakeKernel = CudaKernel (*)(const OpSpec& spec, CudaContext& context);

constexpr std::string_view kTwoKernels = "two kernels";

CudaKernel linear_then_swiglu(const OpSpec& spec, CudaContext& context) {
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

CudaKernel dgrad_then_swiglu_backward(const OpSpec& spec, CudaContext& context) {
  const ProductAndActivation parts = unfused(spec);
  const CudaKernel product = make_cuda_linear_dgrad(parts.product, context);
  const CudaKernel activation = make_cuda_swiglu_backward(parts.activation, context);
  const OperandSpec& product_spec = parts.product.operands[2];
  const size_t d_h_bytes = product_in_scratch_bytes(product_spec.shape[0], product_spec.shape[1],
                                                    dtype_bytes(product_spec.dtype));
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

std::string key_of(const OpSpec& spec, const CudaContext& context) {
  const Shape& x = spec.operands[0].shape;
  const Shape& w = spec.operands[1].shape;
  return fmt::format("{} 1 [{},{}] [{},{}] {}; {}; sm90 kernels {}; cuBLASLt {}", spec.op, x[0],
                     x[1], w[0], w[1], dtype_name(spec.operands[0].dtype), device_text(context),
                     sm90_products_version(), cublasLtGetVersion());
}

TimedWork timed_work(const OpSpec& spec) {
  TimedWork work{.flops = spec_cost(unfused(spec).product).flops};
  for (const OperandSpec& operand : spec.operands) {
    work.operands.push_back({operand.shape.num_elems(), operand.dtype});
  }
  return work;
}

/// `make_two` null: two kernels are not a choice if there is one kernel.
CudaKernel fastest_fused(const OpSpec& spec, CudaContext& context, MakeKernel make_two) {
  const std::vector<std::string> names = fused_kernel_names(spec);
  const auto recall = [&](std::string_view name) -> std::optional<CudaKernel> {
    if (name == kTwoKernels && make_two != nullptr) {
      return make_two(spec, context);
    }
    return std::find(names.begin(), names.end(), name) != names.end()
               ? std::optional(make_fused_kernel(spec, name, context))
               : std::nullopt;
  };
  const auto candidates = [&] {
    std::vector<NamedKernel> list;
    for (const std::string& name : names) {
      list.push_back({.name = name, .kernel = make_fused_kernel(spec, name, context)});
    }
    if (make_two != nullptr) {
      list.push_back({.name = std::string(kTwoKernels), .kernel = make_two(spec, context)});
    }
    return list;
  };
  return fastest_kernel({.key = key_of(spec, context),
                         .work = timed_work(spec),
                         .candidates = candidates,
                         .recall = recall},
                        context);
}

Sm90ProductSizes sizes_of(const OpSpec& spec) {
  return {.m = spec.operands[0].shape[0],
          .n = spec.operands[1].shape[spec.op == kLinearSwigluOp.name ? 0 : 1],
          .k = spec.operands[0].shape[1]};
}

}  // namespace

std::vector<std::string> fused_kernel_names(const OpSpec& spec) {
  return has_fused_kernels(spec) ? sm90_product_names(spec.op) : std::vector<std::string>();
}

CudaKernel make_fused_kernel(const OpSpec& spec, std::string_view name, CudaContext& context) {
  return make_sm90_product(spec.op, name, sizes_of(spec), context);
}

CudaKernel make_cuda_linear_swiglu(const OpSpec& spec, CudaContext& context) {
  return has_fused_kernels(spec) ? fastest_fused(spec, context, linear_then_swiglu)
                                 : linear_then_swiglu(spec, context);
}

CudaKernel make_cuda_linear_dgrad_swiglu_backward(const OpSpec& spec, CudaContext& context) {
  return has_fused_kernels(spec) ? fastest_fused(spec, context, nullptr)
                                 : dgrad_then_swiglu_backward(spec, context);
}

}  // namespace braid
