#include "ops/quantize_gathered.h"

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/fp8_runs.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"
#include "ops/quantize_grouped.h"

/// The definition, bit for bit: other backends are compared with this one.
namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;

/// The row at `x`, rounded.
template <class Element, class T>
void write_row(const T* x, int64_t width, Element* y, float* scales, Fp8Count* losses) {
  for (int64_t c = 0; c < width; c += kBlock) {
    round_run<Element>({.count = kBlock, .to = y + c, .scale = scales + c / kBlock}, losses,
                       [&](int64_t i) { return static_cast<float>(x[c + i]); });
  }
}

template <class Element, class T>
CpuKernel quantize_gathered_kernel(const OpSpec& spec) {
  const QuantizeGatheredOperands at(attributes_of<QuantizeGatheredAttributes>(spec));
  const int64_t width = spec.operands[0].shape[1];
  const int64_t num_rows = spec.operands[1].shape[0];
  const int64_t per_token = spec.operands[2].shape[1];
  const int64_t num_pairs = spec.operands[2].shape.num_elems();
  const int64_t num_experts =
      at.offsets < 0 ? 0 : spec.operands[static_cast<size_t>(at.offsets)].shape[0] - 1;
  return {.run = [=](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    const auto* const pair_of = args.data<const int32_t>(1);
    const int64_t end =
        at.offsets < 0 ? num_rows
                       : args.data<const int32_t>(static_cast<size_t>(at.offsets))[num_experts];
    auto* const y = args.data<Element>(static_cast<size_t>(at.y));
    auto* const scales = args.data<float>(static_cast<size_t>(at.y) + 1);
    int64_t* const tally =
        at.tally < 0 ? nullptr : args.data<int64_t>(static_cast<size_t>(at.tally));
    round_all(args.workers, tally, end, row_grain(width), [&](int64_t r, Fp8Count* losses) {
      if (pair_of[r] < num_pairs) {
        write_row(x + pair_of[r] / per_token * width, width, y + r * width,
                  scales + r * (width / kBlock), losses);
      }
    });
  }};
}

template <class T>
CpuKernel kernel_of(const OpSpec& spec) {
  const QuantizeGatheredOperands at(attributes_of<QuantizeGatheredAttributes>(spec));
  return spec.operands[static_cast<size_t>(at.y)].dtype == DType::kF8E5M2
             ? quantize_gathered_kernel<Float8E5M2, T>(spec)
             : quantize_gathered_kernel<Float8E4M3, T>(spec);
}

}  // namespace

CpuKernel make_quantize_gathered(const OpSpec& spec, int /*num_workers*/) {
  return spec.operands[0].dtype == DType::kF32 ? kernel_of<float>(spec) : kernel_of<BFloat16>(spec);
}

}  // namespace braid
