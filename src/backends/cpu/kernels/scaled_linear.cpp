#include "ops/scaled_linear.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/hopper_sums.h"
#include "backends/cpu/kernels/scaled_factor.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

/// Products of FP8 factors as fp32 products: an element times its scale, a power of two, is exact
/// in fp32, and so is the product of two elements. The first factor is converted a panel of rows at
/// a time. With `hopper_sums` sums are those of cuBLASLt on Hopper instead, slowly.
namespace braid {
namespace {

constexpr int64_t kPanelRows = 256;

/// How cuBLASLt sums on Hopper.
struct HopperSums {
  TensorCore core = kHopperFp8;
  /// After so many products the accumulator, times the scales of a run, is added to a sum in fp32.
  int64_t run = 128;
  bool has_scales = true;  ///< otherwise they are in the factors
};

/// `is_fast`: with one scale per factor the whole sum stays in the accumulator. Runs of 32 are
/// converted to bf16 before they are multiplied.
HopperSums hopper_sums(int64_t block, int64_t depth, bool is_fast) {
  if (block == 32) {
    return {.core = kHopperBf16, .run = depth, .has_scales = false};
  }
  return {.core = kHopperFp8, .run = block == 0 && is_fast ? depth : 128};
}

/// c [a.rows, b.rows] = a b^T (+ bias, + c).
struct Product {
  ScaledFactor a;
  ScaledFactor b;
  size_t a_operand = 0;  // its scales follow
  size_t b_operand = 2;
  size_t result = 4;
  int bias = -1;
  bool accumulate = false;
  std::optional<HopperSums> hopper = std::nullopt;
  bool b_scale_first = false;  ///< Hopper: of the scales of a run, that of b is multiplied first

  int64_t panel_rows() const { return std::min(kPanelRows, a.rows); }
  size_t a_bytes() const { return align_scratch(sizeof(float) * size_t(panel_rows() * a.depth)); }
  size_t b_bytes() const { return align_scratch(sizeof(float) * size_t(b.rows * b.depth)); }
  size_t c_bytes() const { return align_scratch(sizeof(float) * size_t(panel_rows() * b.rows)); }
};

/// Rows [begin, end) of a, and all of b, as floats or, for Hopper's sums, as SplitNumbers.
struct Panel {
  int64_t begin = 0;
  int64_t end = 0;
  std::byte* a = nullptr;
  std::byte* b = nullptr;

  int64_t rows() const { return end - begin; }
};
static_assert(sizeof(SplitNumber) == sizeof(float));

void convert(const KernelArgs& args, const Product& product, const ScaledFactor& factor,
             const FactorRows& rows, std::byte* to) {
  if (product.hopper) {
    split(args.workers, factor, rows, reinterpret_cast<SplitNumber*>(to));
  } else {
    widen(args.workers, factor, rows, reinterpret_cast<float*>(to));
  }
}

void multiply_panel(const KernelArgs& args, const Product& product, const Panel& panel, float* c) {
  gemm(args.workers,
       GemmArgs<float>{.transpose_b = true,
                       .m = panel.rows(),
                       .n = product.b.rows,
                       .k = product.a.depth,
                       .a = reinterpret_cast<const float*>(panel.a),
                       .lda = product.a.depth,
                       .b = reinterpret_cast<const float*>(panel.b),
                       .ldb = product.a.depth,
                       .c = c,
                       .ldc = product.b.rows,
                       .beta = product.accumulate ? 1.0 : 0.0},
       {});
}

/// One element: the sum over rows of the factors, whose scales are functions of the depth. One
/// scale for all is a power of two, so it makes no difference whether runs or their sum are
/// multiplied by it.
template <class FirstScale, class SecondScale>
float hopper_sum(const HopperSums& sums, int64_t depth, const SplitNumber* a, const SplitNumber* b,
                 const FirstScale& first, const SecondScale& second) {
  float total = 0;
  for (int64_t at = 0; at < depth; at += sums.run) {
    const float partial =
        tensor_core_sum(sums.core, a + at, b + at, std::min(sums.run, depth - at));
    total = sums.has_scales ? std::fma(partial * first(at), second(at), total) : partial;
  }
  return total;
}

void sum_panel_as_hopper(const KernelArgs& args, const Product& product, const Panel& panel,
                         float* c) {
  const auto* const a_scales = args.data<const std::byte>(product.a_operand + 1);
  const auto* const b_scales = args.data<const std::byte>(product.b_operand + 1);
  const int64_t depth = product.a.depth;
  const int64_t width = product.b.rows;
  run_pieces(args.workers, panel.rows(), 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin * width; i < end * width; ++i) {
      const int64_t row = i / width;
      const int64_t column = i % width;
      const auto scale_of_a = [&](int64_t at) {
        return product.a.scale_at(a_scales, panel.begin + row, at);
      };
      const auto scale_of_b = [&](int64_t at) { return product.b.scale_at(b_scales, column, at); };
      const auto* const a = reinterpret_cast<const SplitNumber*>(panel.a) + row * depth;
      const auto* const b = reinterpret_cast<const SplitNumber*>(panel.b) + column * depth;
      const float sum = product.b_scale_first
                            ? hopper_sum(*product.hopper, depth, a, b, scale_of_b, scale_of_a)
                            : hopper_sum(*product.hopper, depth, a, b, scale_of_a, scale_of_b);
      c[i] = sum + (product.accumulate ? c[i] : 0.0F);
    }
  });
}

/// The panel of the product in fp32.
void compute_panel(const KernelArgs& args, const Product& product, const Panel& panel, float* c) {
  if (product.hopper) {
    sum_panel_as_hopper(args, product, panel, c);
  } else {
    multiply_panel(args, product, panel, c);
  }
}

template <class T>
void finish_panel(const KernelArgs& args, const Product& product, int64_t rows, const float* c,
                  T* to) {
  const T* const bias =
      product.bias < 0 ? nullptr : args.data<const T>(static_cast<size_t>(product.bias));
  const int64_t width = product.b.rows;
  run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin * width; i < end * width; ++i) {
      store(to, i, c[i] + (bias == nullptr ? 0.0F : static_cast<float>(bias[i % width])));
    }
  });
}

template <class T>
void run_product(const KernelArgs& args, const Product& product) {
  std::byte* const scratch = args.scratch.data();
  Panel panel{.a = scratch, .b = scratch + product.a_bytes()};
  auto* const c = reinterpret_cast<float*>(panel.b + product.b_bytes());
  const auto rows = [&](size_t operand, int64_t begin, int64_t end) {
    return FactorRows{.data = args.data<const std::byte>(operand),
                      .scales = args.data<const std::byte>(operand + 1),
                      .begin = begin,
                      .end = end};
  };
  convert(args, product, product.b, rows(product.b_operand, 0, product.b.rows), panel.b);
  for (panel.begin = 0; panel.begin < product.a.rows; panel.begin += kPanelRows) {
    panel.end = std::min(product.a.rows, panel.begin + kPanelRows);
    convert(args, product, product.a, rows(product.a_operand, panel.begin, panel.end), panel.a);
    T* const to = args.data<T>(product.result) + panel.begin * product.b.rows;
    if constexpr (std::is_same_v<T, float>) {
      if (product.bias < 0) {
        compute_panel(args, product, panel, to);
        continue;
      }
    }
    compute_panel(args, product, panel, c);
    finish_panel(args, product, panel.rows(), c, to);
  }
}

CpuKernel kernel_of(const OpSpec& spec, Product product, const EmulatedSums& sums, int64_t block,
                    bool is_fast = false) {
  if (sums.hopper_sums) {
    product.hopper = hopper_sums(block, product.a.depth, is_fast);
  }
  const bool is_f32 = spec.operands[product.result].dtype == DType::kF32;
  const bool needs_panel = !is_f32 || product.bias >= 0;
  return {.run = is_f32 ? [product](const KernelArgs& args) { run_product<float>(args, product); }
                        : std::function<void(const KernelArgs&)>([product](const KernelArgs& args) {
                            run_product<BFloat16>(args, product);
                          }),
          .scratch_bytes =
              product.a_bytes() + product.b_bytes() + (needs_panel ? product.c_bytes() : 0)};
}

}  // namespace

CpuKernel make_scaled_linear(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledLinearAttributes>(spec);
  return kernel_of(spec,
                   {.a = ScaledFactor(spec, 0, {.block = attributes.block}),
                    .b = ScaledFactor(spec, 2, ScaleLayout::of_weight(attributes.block)),
                    .result = spec.operands.size() - 1,
                    .bias = attributes.has_bias && attributes.adds_bias ? 4 : -1},
                   attributes.sums, attributes.block, /*is_fast=*/true);
}

CpuKernel make_scaled_linear_dgrad(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledLinearDgradAttributes>(spec);
  return kernel_of(spec,
                   {.a = ScaledFactor(spec, 0, {.block = attributes.block}),
                    .b = ScaledFactor(spec, 2, ScaleLayout::of_weight(attributes.block))},
                   attributes.sums, attributes.block);
}

// dw [M,K] = dy^T x: the rows of dw are those of dy^T. cuBLASLt's first factor is x.
CpuKernel make_scaled_linear_wgrad(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledLinearWgradAttributes>(spec);
  return kernel_of(spec,
                   {.a = ScaledFactor(spec, 2, {.block = attributes.block}),
                    .b = ScaledFactor(spec, 0, {.block = attributes.block}),
                    .a_operand = 2,
                    .b_operand = 0,
                    .accumulate = attributes.accumulate,
                    .b_scale_first = true},
                   attributes.sums, attributes.block);
}

}  // namespace braid
