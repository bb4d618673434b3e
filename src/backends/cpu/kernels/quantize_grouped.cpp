#include "ops/quantize_grouped.h"

#include <algorithm>

#include "backends/cpu/kernels/expert_ranges.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/fp8_runs.h"
#include "backends/cpu/kernels/grouped_columns.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

/// The definition of FP8 copies of rows of experts, bit for bit: other backends are compared with
/// this one. Plain loops over blocks, without regard to speed.
namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;

/// x [R,C] and a copy of it.
template <class Element, class T>
struct Copy {
  const T* x = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  Element* to = nullptr;
  float* scales = nullptr;
  int64_t* tally = nullptr;  // null: not wanted

  float at(int64_t r, int64_t c) const { return static_cast<float>(x[r * columns + c]); }
};

template <class Element, class T>
void write_row(const Copy<Element, T>& copy, int64_t r, Fp8Count* losses) {
  for (int64_t c = 0; c < copy.columns; c += kBlock) {
    round_run<Element>({.count = std::min(kBlock, copy.columns - c),
                        .to = copy.to + r * copy.columns + c,
                        .scale = copy.scales + c / kBlock * copy.rows + r},
                       losses, [&](int64_t i) { return copy.at(r, c + i); });
  }
}

template <class Element, class T>
void write_copy(const KernelArgs& args, const OpSpec& spec, int operand, bool is_row, int tally) {
  const auto at = static_cast<size_t>(operand);
  const Shape& x = spec.operands[0].shape;
  const ExpertRanges experts(args.data<const int32_t>(1), spec.operands[1].shape[0] - 1, x[0]);
  const Copy<Element, T> copy{
      .x = args.data<const T>(0),
      .rows = x[0],
      .columns = x[1],
      .to = args.data<Element>(at),
      .scales = args.data<float>(at + 1),
      .tally = tally < 0 ? nullptr : args.data<int64_t>(static_cast<size_t>(tally))};
  if (is_row) {
    round_all(args.workers, copy.tally, experts.end(), row_grain(copy.columns),
              [&](int64_t r, Fp8Count* losses) { write_row(copy, r, losses); });
  } else {
    write_columns<Element>(args.workers,
                           {.rows = copy.rows,
                            .columns = copy.columns,
                            .to = copy.to,
                            .scales = copy.scales,
                            .tally = copy.tally},
                           experts, [&](int64_t r, int64_t c) { return copy.at(r, c); });
  }
}

template <class T>
CpuKernel quantize_grouped_kernel(const OpSpec& spec) {
  const QuantizeGroupedOperands at(attributes_of<QuantizeGroupedAttributes>(spec));
  const auto write = [spec, at](const KernelArgs& args, int operand, bool is_row) {
    if (operand < 0) {
      return;
    }
    if (spec.operands[static_cast<size_t>(operand)].dtype == DType::kF8E5M2) {
      write_copy<Float8E5M2, T>(args, spec, operand, is_row, at.tally);
    } else {
      write_copy<Float8E4M3, T>(args, spec, operand, is_row, at.tally);
    }
  };
  return {.run = [=](const KernelArgs& args) {
    write(args, at.row, /*is_row=*/true);
    write(args, at.column, /*is_row=*/false);
  }};
}

}  // namespace

CpuKernel make_quantize_grouped(const OpSpec& spec, int /*num_workers*/) {
  return spec.operands[0].dtype == DType::kF32 ? quantize_grouped_kernel<float>(spec)
                                               : quantize_grouped_kernel<BFloat16>(spec);
}

}  // namespace braid
