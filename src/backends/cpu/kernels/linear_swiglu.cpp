// Runs the two kernels one after the other. On a CPU a product takes so long that keeping its
// result in registers gains nothing, and the results are bitwise those of the two ops.
#include "ops/linear_swiglu.h"

#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/factories.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr size_t kScratchAlignment = 64;

size_t aligned_operand_bytes(const OperandSpec& operand) {
  const size_t bytes = static_cast<size_t>(operand.shape.num_elems()) * dtype_bytes(operand.dtype);
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

using MakeKernel = CpuKernel (*)(const OpSpec& spec, int num_workers);

CpuKernel make_both(const OpSpec& spec, int num_workers, MakeKernel make_product,
                    MakeKernel make_activation) {
  const ProductAndActivation parts = unfused(spec);
  const CpuKernel product = make_product(parts.product, num_workers);
  const CpuKernel activation = make_activation(parts.activation, num_workers);
  const size_t handed_on_bytes =
      keeps_product(parts.activation) ? 0 : aligned_operand_bytes(parts.product.operands.back());
  return {
      .run =
          [parts, product, activation, handed_on_bytes](const KernelArgs& args) {
            PartOperands<std::byte*> own(parts, args.operands, args.scratch.data());
            const std::span<std::byte> scratch = args.scratch.subspan(handed_on_bytes);
            product.run({.operands = own.product(), .scratch = scratch, .workers = args.workers});
            activation.run(
                {.operands = own.activation(), .scratch = scratch, .workers = args.workers});
          },
      .scratch_bytes = handed_on_bytes + std::max(product.scratch_bytes, activation.scratch_bytes)};
}

}  // namespace

CpuKernel make_linear_swiglu(const OpSpec& spec, int num_workers) {
  return make_both(spec, num_workers, make_linear, make_swiglu);
}

CpuKernel make_linear_dgrad_swiglu_backward(const OpSpec& spec, int num_workers) {
  return make_both(spec, num_workers, make_linear_dgrad, make_swiglu_backward);
}

CpuKernel make_grouped_linear_swiglu(const OpSpec& spec, int num_workers) {
  return make_both(spec, num_workers, make_grouped_linear, make_routed_swiglu);
}

CpuKernel make_grouped_linear_dgrad_swiglu_backward(const OpSpec& spec, int num_workers) {
  return make_both(spec, num_workers, make_grouped_linear_dgrad, make_routed_swiglu_backward);
}

}  // namespace braid
