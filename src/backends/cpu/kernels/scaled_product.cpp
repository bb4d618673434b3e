#include "backends/cpu/kernels/scaled_product.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/support.h"

namespace braid {
namespace {

constexpr int64_t kPanelRows = 256;

/// Bytes of the parts of scratch.
struct Sizes {
  Sizes(const ScaledProduct& product, const ScaledProductPart& part) {
    const int64_t panel_rows = std::min(kPanelRows, part.a_rows.size());
    const auto bytes = [](int64_t rows, int64_t columns) {
      return align_scratch(sizeof(float) * static_cast<size_t>(rows * columns));
    };
    a = bytes(panel_rows, part.depth());
    b = bytes(part.b_rows.size(), part.depth());
    c = product.result_dtype == DType::kF32 && product.bias < 0
            ? 0
            : bytes(panel_rows, part.b_rows.size());
  }
  size_t a = 0;  ///< a panel
  size_t b = 0;
  size_t c = 0;  ///< the panel of a result that cannot be summed where it lies
};

/// Rows of a, and the part of b, as floats or, for Hopper's sums, as SplitNumbers.
struct Panel {
  ElemRange rows;
  std::byte* a = nullptr;
  std::byte* b = nullptr;
};
static_assert(sizeof(SplitNumber) == sizeof(float));

/// What of a factor is converted, and to what.
struct Conversion {
  size_t operand = 0;
  ElemRange rows;
  ElemRange depth;
  bool is_split = false;  ///< to SplitNumbers, not to floats
};

void convert(const KernelArgs& args, const ScaledFactor& factor, const Conversion& what,
             std::byte* to) {
  const FactorPart part{.data = args.data<const std::byte>(what.operand),
                        .scales = args.data<const std::byte>(what.operand + 1),
                        .rows = what.rows,
                        .depth = what.depth};
  if (what.is_split) {
    split(args.workers, factor, part, reinterpret_cast<SplitNumber*>(to));
  } else {
    widen(args.workers, factor, part, reinterpret_cast<float*>(to));
  }
}

float* floats(std::byte* at) {
  return reinterpret_cast<float*>(at);
}

void multiply_panel(const KernelArgs& args, const ScaledProduct& product,
                    const ScaledProductPart& part, const Panel& panel, float* c) {
  const GemmArgs<float> product_args{.transpose_b = true,
                                     .m = panel.rows.size(),
                                     .n = part.b_rows.size(),
                                     .k = part.depth(),
                                     .a = floats(panel.a),
                                     .lda = part.depth(),
                                     .b = floats(panel.b),
                                     .ldb = part.depth(),
                                     .c = c,
                                     .ldc = part.b_rows.size(),
                                     .beta = product.accumulate ? 1.0 : 0.0};
  if (product.any_workers) {
    gemm_groups<float>(args.workers, 1, [&](int64_t) { return product_args; }, {});
  } else {
    gemm(args.workers, product_args, {});
  }
}

/// One element: the sum over rows of the factors, whose scales are functions of the place along the
/// depth. One scale for all is a power of two, so it makes no difference whether runs or their sum
/// are multiplied by it.
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

void sum_panel_as_hopper(const KernelArgs& args, const ScaledProduct& product,
                         const ScaledProductPart& part, const Panel& panel, float* c) {
  const auto* const a_scales = args.data<const std::byte>(product.a_operand + 1);
  const auto* const b_scales = args.data<const std::byte>(product.b_operand + 1);
  const int64_t depth = part.depth();
  const int64_t width = part.b_rows.size();
  run_pieces(args.workers, panel.rows.size(), 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin * width; i < end * width; ++i) {
      const int64_t row = i / width;
      const int64_t column = i % width;
      const auto scale_of_a = [&](int64_t at) {
        return product.a.scale_at(a_scales, panel.rows.begin + row, part.a_depth.begin + at);
      };
      const auto scale_of_b = [&](int64_t at) {
        return product.b.scale_at(b_scales, part.b_rows.begin + column, part.b_depth.begin + at);
      };
      const auto* const a = reinterpret_cast<const SplitNumber*>(panel.a) + row * depth;
      const auto* const b = reinterpret_cast<const SplitNumber*>(panel.b) + column * depth;
      const float sum = product.b_scale_first
                            ? hopper_sum(*product.hopper, depth, a, b, scale_of_b, scale_of_a)
                            : hopper_sum(*product.hopper, depth, a, b, scale_of_a, scale_of_b);
      c[i] = sum + (product.accumulate ? c[i] : 0.0F);
    }
  });
}

/// The panel of the product in fp32, added to `c` if that is where the result lies.
void compute_panel(const KernelArgs& args, const ScaledProduct& product,
                   const ScaledProductPart& part, const Panel& panel, float* c) {
  if (product.hopper) {
    sum_panel_as_hopper(args, product, part, panel, c);
  } else {
    multiply_panel(args, product, part, panel, c);
  }
}

template <class T>
void finish_panel(const KernelArgs& args, const ScaledProduct& product, int64_t rows, int64_t width,
                  const float* c, T* to) {
  const T* const bias =
      product.bias < 0 ? nullptr : args.data<const T>(static_cast<size_t>(product.bias));
  run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin * width; i < end * width; ++i) {
      const float before = product.accumulate ? static_cast<float>(to[i]) : 0.0F;
      store(to, i, c[i] + (bias == nullptr ? before : static_cast<float>(bias[i % width])));
    }
  });
}

template <class T>
void run_panels(const KernelArgs& args, const ScaledProduct& product,
                const ScaledProductPart& part) {
  const Sizes sizes(product, part);
  std::byte* const scratch = args.scratch.data();
  Panel panel{.a = scratch, .b = scratch + sizes.a};
  float* const c = floats(panel.b + sizes.b);
  convert(args, product.b,
          {.operand = product.b_operand,
           .rows = part.b_rows,
           .depth = part.b_depth,
           .is_split = product.hopper.has_value()},
          panel.b);
  T* to = args.data<T>(product.result) + part.result_row * part.b_rows.size();
  ScaledProduct in_scratch = product;
  in_scratch.accumulate = false;
  for (int64_t row = part.a_rows.begin; row < part.a_rows.end; row += kPanelRows) {
    panel.rows = {row, std::min(part.a_rows.end, row + kPanelRows)};
    convert(args, product.a,
            {.operand = product.a_operand,
             .rows = panel.rows,
             .depth = part.a_depth,
             .is_split = product.hopper.has_value()},
            panel.a);
    if constexpr (std::is_same_v<T, float>) {
      if (product.bias < 0) {
        compute_panel(args, product, part, panel, to);
        to += panel.rows.size() * part.b_rows.size();
        continue;
      }
    }
    compute_panel(args, in_scratch, part, panel, c);
    finish_panel(args, product, panel.rows.size(), part.b_rows.size(), c, to);
    to += panel.rows.size() * part.b_rows.size();
  }
}

/// A sum of no terms.
template <class T>
void add_nothing(const KernelArgs& args, const ScaledProduct& product,
                 const ScaledProductPart& part) {
  const int64_t width = part.b_rows.size();
  T* const to = args.data<T>(product.result) + part.result_row * width;
  std::fill_n(to, product.accumulate ? 0 : part.a_rows.size() * width, T(0.0F));
}

template <class T>
void run_part(const KernelArgs& args, const ScaledProduct& product, const ScaledProductPart& part) {
  if (part.depth() == 0) {
    add_nothing<T>(args, product, part);
  } else {
    run_panels<T>(args, product, part);
  }
}

}  // namespace

size_t scaled_product_scratch_bytes(const ScaledProduct& product,
                                    const ScaledProductPart& largest) {
  const Sizes sizes(product, largest);
  return sizes.a + sizes.b + sizes.c;
}

void run_scaled_product(const KernelArgs& args, const ScaledProduct& product,
                        const ScaledProductPart& part) {
  if (product.result_dtype == DType::kF32) {
    run_part<float>(args, product, part);
  } else {
    run_part<BFloat16>(args, product, part);
  }
}

}  // namespace braid
