// Runs the two kernels one after the other. On a CPU a product takes so long that keeping its
// result in registers gains nothing, and the results are bitwise those of the two ops.
#include "ops/linear_swiglu.h"

#include <algorithm>
#include <array>

#include "backends/cpu/kernels/factories.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr size_t kScratchAlignment = 64;

size_t aligned_operand_bytes(const OperandSpec& operand) {
  const size_t bytes = static_cast<size_t>(operand.shape.num_elems()) * dtype_bytes(operand.dtype);
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace

CpuKernel make_linear_swiglu(const OpSpec& spec, int num_workers) {
  const ProductAndActivation parts = unfused(spec);
  const CpuKernel product = make_linear(parts.product, num_workers);
  const CpuKernel activation = make_swiglu(parts.activation, num_workers);
  return {.run =
              [product, activation](const KernelArgs& args) {
                product.run({.operands = args.operands.first(3),
                             .scratch = args.scratch,
                             .workers = args.workers});
                activation.run({.operands = args.operands.last(2),
                                .scratch = args.scratch,
                                .workers = args.workers});
              },
          .scratch_bytes = std::max(product.scratch_bytes, activation.scratch_bytes)};
}

CpuKernel make_linear_dgrad_swiglu_backward(const OpSpec& spec, int num_workers) {
  const ProductAndActivation parts = unfused(spec);
  const CpuKernel product = make_linear_dgrad(parts.product, num_workers);
  const CpuKernel activation = make_swiglu_backward(parts.activation, num_workers);
  const size_t d_h_bytes = aligned_operand_bytes(parts.product.operands[2]);
  return {.run =
              [product, activation, d_h_bytes](const KernelArgs& args) {
                std::byte* const d_h = args.scratch.data();
                const std::span<std::byte> scratch = args.scratch.subspan(d_h_bytes);
                const std::array product_operands{args.operands[0], args.operands[1], d_h};
                product.run(
                    {.operands = product_operands, .scratch = scratch, .workers = args.workers});
                const std::array activation_operands{args.operands[2], d_h, args.operands[3]};
                activation.run(
                    {.operands = activation_operands, .scratch = scratch, .workers = args.workers});
              },
          .scratch_bytes = d_h_bytes + std::max(product.scratch_bytes, activation.scratch_bytes)};
}

}  // namespace braid
