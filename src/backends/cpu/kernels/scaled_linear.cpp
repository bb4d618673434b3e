#include "ops/scaled_linear.h"

#include <array>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/support.h"
#include "base/float8.h"
#include "ops/attributes.h"
#include "ops/quantize.h"

/// Products of FP8 factors as fp32 products: an element times its scale, a power of two, is exact
/// in fp32, and so is the product of two elements. The first factor is converted a panel of rows at
/// a time.
namespace braid {
namespace {

constexpr int64_t kPanelRows = 256;

/// A factor [rows, depth] with its scales, as operands of a kernel.
struct Factor {
  int64_t rows = 0;
  int64_t depth = 0;
  ScaleLayout scales;
  int64_t scale_stride = 0;  // elements of a row of the scales
  bool is_e5m2 = false;
};

Factor factor_of(const OpSpec& spec, size_t operand, int64_t block, bool square) {
  const Shape& shape = spec.operands[operand].shape;
  const ScaleLayout scales{.block = block, .square = square && block == 128};
  return {.rows = shape[0],
          .depth = shape[1],
          .scales = scales,
          .scale_stride = block == 0 ? 0 : scales.shape(shape)[1],
          .is_e5m2 = spec.operands[operand].dtype == DType::kF8E5M2};
}

float scale_at(const Factor& factor, const std::byte* scales, int64_t row, int64_t depth) {
  int64_t at = 0;
  if (factor.scales.block != 0) {
    const int64_t along = depth / factor.scales.block;
    at = factor.scales.square ? row / factor.scales.block * factor.scale_stride + along
                              : along * factor.scale_stride + row;
  }
  return factor.scales.dtype() == DType::kF8E8M0
             ? Fp8Scale::from_e8m0(std::to_integer<uint8_t>(scales[at]))
             : reinterpret_cast<const float*>(scales)[at];
}

/// The values of all elements of a format.
template <class Element>
std::array<float, 256> values_of() {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(Element::from_bits(static_cast<uint8_t>(i)));
  }
  return values;
}

/// Rows [begin, end), each element times its scale.
void widen(WorkerPool& workers, const Factor& factor, const uint8_t* data, const std::byte* scales,
           int64_t begin, int64_t end, float* to) {
  static const std::array<float, 256> kE4M3 = values_of<Float8E4M3>();
  static const std::array<float, 256> kE5M2 = values_of<Float8E5M2>();
  const std::array<float, 256>& values = factor.is_e5m2 ? kE5M2 : kE4M3;
  const int64_t run = factor.scales.block == 0 ? factor.depth : factor.scales.block;
  run_pieces(workers, end - begin, row_grain(factor.depth), [&](int, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const uint8_t* const row = data + (begin + r) * factor.depth;
      for (int64_t d = 0; d < factor.depth; d += run) {
        const float scale = scale_at(factor, scales, begin + r, d);
        for (int64_t i = d; i < std::min(factor.depth, d + run); ++i) {
          to[r * factor.depth + i] = values[row[i]] * scale;
        }
      }
    }
  });
}

/// c [a.rows, b.rows] = a b^T (+ bias, + c).
struct Product {
  Factor a;
  Factor b;
  size_t a_operand = 0;  // its scales follow
  size_t b_operand = 2;
  size_t result = 4;
  int bias = -1;
  bool accumulate = false;

  int64_t panel_rows() const { return std::min(kPanelRows, a.rows); }
  size_t a_bytes() const { return align_scratch(sizeof(float) * size_t(panel_rows() * a.depth)); }
  size_t b_bytes() const { return align_scratch(sizeof(float) * size_t(b.rows * b.depth)); }
  size_t c_bytes() const { return align_scratch(sizeof(float) * size_t(panel_rows() * b.rows)); }
};

/// The panel of the product in fp32.
void multiply_panel(const KernelArgs& args, const Product& product, int64_t rows, const float* a,
                    const float* b, float* c) {
  gemm(args.workers,
       GemmArgs<float>{.transpose_b = true,
                       .m = rows,
                       .n = product.b.rows,
                       .k = product.a.depth,
                       .a = a,
                       .lda = product.a.depth,
                       .b = b,
                       .ldb = product.a.depth,
                       .c = c,
                       .ldc = product.b.rows,
                       .beta = product.accumulate ? 1.0 : 0.0},
       {});
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
  auto* const a = reinterpret_cast<float*>(scratch);
  auto* const b = reinterpret_cast<float*>(scratch + product.a_bytes());
  auto* const c = reinterpret_cast<float*>(scratch + product.a_bytes() + product.b_bytes());
  widen(args.workers, product.b, args.data<const uint8_t>(product.b_operand),
        args.data<const std::byte>(product.b_operand + 1), 0, product.b.rows, b);
  for (int64_t begin = 0; begin < product.a.rows; begin += kPanelRows) {
    const int64_t end = std::min(product.a.rows, begin + kPanelRows);
    widen(args.workers, product.a, args.data<const uint8_t>(product.a_operand),
          args.data<const std::byte>(product.a_operand + 1), begin, end, a);
    T* const to = args.data<T>(product.result) + begin * product.b.rows;
    if constexpr (std::is_same_v<T, float>) {
      if (product.bias < 0) {
        multiply_panel(args, product, end - begin, a, b, to);
        continue;
      }
    }
    multiply_panel(args, product, end - begin, a, b, c);
    finish_panel(args, product, end - begin, c, to);
  }
}

CpuKernel kernel_of(const OpSpec& spec, const Product& product) {
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
  return kernel_of(spec, {.a = factor_of(spec, 0, attributes.block, /*square=*/false),
                          .b = factor_of(spec, 2, attributes.block, /*square=*/true),
                          .result = spec.operands.size() - 1,
                          .bias = attributes.has_bias && attributes.adds_bias ? 4 : -1});
}

CpuKernel make_scaled_linear_dgrad(const OpSpec& spec, int /*num_workers*/) {
  const int64_t block = attributes_of<ScaledLinearDgradAttributes>(spec).block;
  return kernel_of(spec, {.a = factor_of(spec, 0, block, /*square=*/false),
                          .b = factor_of(spec, 2, block, /*square=*/true)});
}

// dw [M,K] = dy^T x: the rows of dw are those of dy^T.
CpuKernel make_scaled_linear_wgrad(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledLinearWgradAttributes>(spec);
  return kernel_of(spec, {.a = factor_of(spec, 2, attributes.block, /*square=*/false),
                          .b = factor_of(spec, 0, attributes.block, /*square=*/false),
                          .a_operand = 2,
                          .b_operand = 0,
                          .accumulate = attributes.accumulate});
}

}  // namespace braid
