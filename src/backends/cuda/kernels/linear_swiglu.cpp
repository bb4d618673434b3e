// One kernel, if this build has one for the operands; otherwise the two kernels one after the other
// on the stream. In the forward the two kernels are also used if they are faster. In the backward
// they never are (bench/notes.md, "Matrix products and attention" and "Products of experts with
// SwiGLU in their epilogue"), and they would need memory for d_h, which is counted before a device
// is available.
#include "backends/cuda/kernels/linear_swiglu.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/fastest_kernel.h"
#include "backends/cuda/kernels/fused_kernels.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/cuda/kernels/sm90_products.h"
#include "backends/cuda/kernels/weight_grad_parts.h"
#include "base/errors.h"
#include "ops/integer_values.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"

namespace braid {
namespace {

using MakeKernel = CudaKernel (*)(const OpSpec& spec, CudaContext& context);

constexpr std::string_view kTwoKernels = "two kernels";

/// What the product hands on is at the begin of scratch, if it is no operand.
CudaKernel two_kernels(const OpSpec& spec, CudaContext& context, MakeKernel make_product,
                       MakeKernel make_activation) {
  const ProductAndActivation parts = unfused(spec);
  const CudaKernel product = make_product(parts.product, context);
  const CudaKernel activation = make_activation(parts.activation, context);
  const OperandSpec& result = parts.product.operands.back();
  const size_t between_bytes =
      keeps_product(parts.activation)
          ? 0
          : product_in_scratch_bytes(result.shape[0], result.shape[1], dtype_bytes(result.dtype));
  return {
      .launch =
          [parts, product, activation, between_bytes](const CudaKernelArgs& args) {
            PartOperands<std::byte*> own(parts, args.operands, args.scratch);
            std::byte* const scratch = args.scratch + between_bytes;
            product.launch({.operands = own.product(), .scratch = scratch, .stream = args.stream});
            activation.launch(
                {.operands = own.activation(), .scratch = scratch, .stream = args.stream});
          },
      .scratch_bytes = between_bytes + std::max(product.scratch_bytes, activation.scratch_bytes)};
}

CudaKernel linear_then_swiglu(const OpSpec& spec, CudaContext& context) {
  return two_kernels(spec, context, make_cuda_linear, make_cuda_swiglu);
}

CudaKernel dgrad_then_swiglu_backward(const OpSpec& spec, CudaContext& context) {
  return two_kernels(spec, context, make_cuda_linear_dgrad, make_cuda_swiglu_backward);
}

CudaKernel grouped_linear_then_swiglu(const OpSpec& spec, CudaContext& context) {
  return two_kernels(spec, context, make_cuda_grouped_linear, make_cuda_routed_swiglu);
}

CudaKernel grouped_dgrad_then_swiglu_backward(const OpSpec& spec, CudaContext& context) {
  return two_kernels(spec, context, make_cuda_grouped_linear_dgrad,
                     make_cuda_routed_swiglu_backward);
}

Sm90ProductSizes sizes_of(const OpSpec& spec) {
  const OpSpec product = unfused(spec).product;
  const GemmShape shape = find_op(product.op).gemm_shape(product);
  return {.m = shape.rows, .n = shape.columns, .k = shape.depth, .groups = shape.groups};
}

std::string key_of(const OpSpec& spec, const CudaContext& context) {
  const Shape& x = spec.operands[0].shape;
  const Shape& w = spec.operands[1].shape;
  const int64_t groups = sizes_of(spec).groups;
  return fmt::format("{} 1 {}[{},{}] [{},{}] {}; {}; sm90 kernels {}; cuBLASLt {}", spec.op,
                     groups > 1 ? fmt::format("{} x ", groups) : "", x[0], x[1], w[0], w[1],
                     dtype_name(spec.operands[0].dtype), device_text(context),
                     sm90_products_version(), cublasLtGetVersion());
}

TimedWork timed_work(const OpSpec& spec) {
  TimedWork work{.flops = spec_cost(unfused(spec).product).flops};
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const auto& [dtype, access, shape] = spec.operands[i];
    work.operands.push_back(
        {.num_elems = shape.num_elems(),
         .dtype = dtype,
         .integers = dtype == DType::kI32 ? valid_integers(spec, i) : std::vector<int32_t>()});
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

/// The kernel writes parts of d_weights to scratch, behind the number of its next tile; another one
/// adds them up.
CudaKernel with_weight_grads(const OpSpec& spec, std::string_view name, CudaContext& context) {
  check(sm90_product_columns(spec.op, name) == kWeightGradColumns,
        "product {} has other tiles than scratch is counted for", name);
  const CudaKernel product = make_sm90_product(spec.op, name, sizes_of(spec), context);
  const Shape& w = spec.operands[1].shape;
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  return {
      .launch =
          [=](const CudaKernelArgs& args) {
            std::vector<std::byte*> operands(args.operands.begin(), args.operands.end());
            operands.back() = args.scratch + kGroupedScratchBytes;
            product.launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
            sum_weight_grad_parts({.parts = reinterpret_cast<const float*>(operands.back()),
                                   .num_rows = args.data<const int32_t>(2) + num_experts,
                                   .d_weights = args.data<float>(args.operands.size() - 1),
                                   .num_parts = weight_grad_parts(w[1]),
                                   .rows = rows},
                                  args.stream);
          },
      .scratch_bytes = kGroupedScratchBytes + weight_grad_parts_bytes(rows, w[1])};
}

}  // namespace

std::vector<std::string> fused_kernel_names(const OpSpec& spec) {
  return has_fused_kernels(spec) ? sm90_product_names(spec.op) : std::vector<std::string>();
}

CudaKernel make_fused_kernel(const OpSpec& spec, std::string_view name, CudaContext& context) {
  return spec.op == kGroupedLinearDgradSwigluBackwardOp.name
             ? with_weight_grads(spec, name, context)
             : make_sm90_product(spec.op, name, sizes_of(spec), context);
}

CudaKernel make_cuda_linear_swiglu(const OpSpec& spec, CudaContext& context) {
  return has_fused_kernels(spec) ? fastest_fused(spec, context, linear_then_swiglu)
                                 : linear_then_swiglu(spec, context);
}

CudaKernel make_cuda_linear_dgrad_swiglu_backward(const OpSpec& spec, CudaContext& context) {
  return has_fused_kernels(spec) ? fastest_fused(spec, context, nullptr)
                                 : dgrad_then_swiglu_backward(spec, context);
}

CudaKernel make_cuda_grouped_linear_swiglu(const OpSpec& spec, CudaContext& context) {
  return has_fused_kernels(spec) ? fastest_fused(spec, context, grouped_linear_then_swiglu)
                                 : grouped_linear_then_swiglu(spec, context);
}

CudaKernel make_cuda_grouped_linear_dgrad_swiglu_backward(const OpSpec& spec,
                                                          CudaContext& context) {
  return has_fused_kernels(spec) ? fastest_fused(spec, context, nullptr)
                                 : grouped_dgrad_then_swiglu_backward(spec, context);
}

}  // namespace braid
