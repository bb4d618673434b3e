#include "ops/quantize_grouped.h"

#include <algorithm>
#include <bit>

#include "backends/cpu/kernels/expert_ranges.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/fp8_tally.h"
#include "backends/cpu/kernels/support.h"
#include "base/float8.h"
#include "ops/attributes.h"

/// The definition of FP8 copies of rows of experts, bit for bit: other backends are compared with
/// this one. Plain loops over blocks, without regard to speed.
namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;

/// At most 128 elements of x that share a scale, and where their copies go.
template <class Element, class T>
struct Run {
  const T* x = nullptr;
  int64_t stride = 1;  // in x
  int64_t count = 0;
  Element* to = nullptr;
  float* scale = nullptr;
};

/// `count`: null: not wanted.
template <class Element, class T>
void round_run(const Run<Element, T>& run, DType format, Fp8Count* count) {
  const auto value_at = [&](int64_t i) { return static_cast<float>(run.x[i * run.stride]); };
  uint32_t largest = 0;
  for (int64_t i = 0; i < run.count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value_at(i)) & 0x7FFF'FFFFu);
  }
  const int exponent = Fp8Scale::exponent_of(largest, Fp8Scale::largest_exponent(format));
  const bool is_finite = exponent != Fp8Scale::kNotFinite;
  const float factor = is_finite ? Fp8Scale::to_float(-exponent) : 0.0F;
  *run.scale = Fp8Scale::to_float(exponent);
  for (int64_t i = 0; i < run.count; ++i) {
    run.to[i] = is_finite ? Element(value_at(i) * factor) : Element::from_bits(0x7F);
    if (count != nullptr) {
      count->add(value_at(i), factor, run.to[i]);
    }
  }
}

/// x [R,C] and a copy of it.
template <class Element, class T>
struct Copy {
  const T* x = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  DType format = DType::kF8E4M3;
  Element* to = nullptr;
  float* scales = nullptr;
  int64_t* tally = nullptr;  // null: not wanted
};

/// Calls round(i, count) for all i in [0, size), and adds what was counted to the tally.
template <class Element, class T, class Round>
void for_all(WorkerPool& workers, const Copy<Element, T>& copy, int64_t size, int64_t grain,
             const Round& round) {
  run_pieces(workers, size, grain, [&](int, int64_t begin, int64_t end) {
    Fp8Count count;
    for (int64_t i = begin; i < end; ++i) {
      round(i, copy.tally == nullptr ? nullptr : &count);
    }
    if (copy.tally != nullptr) {
      count.add_to(copy.tally);
    }
  });
}

template <class Element, class T>
void write_rows(WorkerPool& workers, const Copy<Element, T>& copy, const ExpertRanges& experts) {
  for_all(workers, copy, experts.end(), row_grain(copy.columns), [&](int64_t r, Fp8Count* count) {
    for (int64_t c = 0; c < copy.columns; c += kBlock) {
      const int64_t at = r * copy.columns + c;
      round_run<Element, T>({.x = copy.x + at,
                             .count = std::min(kBlock, copy.columns - c),
                             .to = copy.to + at,
                             .scale = copy.scales + c / kBlock * copy.rows + r},
                            copy.format, count);
    }
  });
}

/// One column of x: the blocks of all experts.
template <class Element, class T>
void write_column(const Copy<Element, T>& copy, const ExpertRanges& experts, int64_t c,
                  Fp8Count* count) {
  Element* const to = copy.to + c * GroupedColumns::width(copy.rows, experts.num_experts());
  for (int64_t e = 0; e < experts.num_experts(); ++e) {
    const ExpertRange mine = experts[e];
    const int64_t begin = GroupedColumns::begin(mine.begin, e);
    for (int64_t i = 0; i < mine.count; i += kBlock) {
      const int64_t size = std::min(kBlock, mine.count - i);
      round_run<Element, T>({.x = copy.x + (mine.begin + i) * copy.columns + c,
                             .stride = copy.columns,
                             .count = size,
                             .to = to + begin + i,
                             .scale = copy.scales + (begin + i) / kBlock * copy.columns + c},
                            copy.format, count);
      std::fill_n(to + begin + i + size, kBlock - size, Element());
    }
  }
}

template <class Element, class T>
void write_columns(WorkerPool& workers, const Copy<Element, T>& copy, const ExpertRanges& experts) {
  for_all(workers, copy, copy.columns, row_grain(experts.end()),
          [&](int64_t c, Fp8Count* count) { write_column(copy, experts, c, count); });
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
      .format = spec.operands[at].dtype,
      .to = args.data<Element>(at),
      .scales = args.data<float>(at + 1),
      .tally = tally < 0 ? nullptr : args.data<int64_t>(static_cast<size_t>(tally))};
  if (is_row) {
    write_rows(args.workers, copy, experts);
  } else {
    write_columns(args.workers, copy, experts);
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
