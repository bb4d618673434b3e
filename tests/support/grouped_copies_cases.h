#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "ops/quantize_grouped.h"
#include "ops/scaled_grouped_linear.h"
#include "support/grouped_linear_cases.h"
#include "support/kernel_harness.h"

/// FP8 copies of rows of experts, and the products of such copies. Memory that belongs to no expert
/// holds NaN.
namespace braid {

constexpr ScaleLayout kRunScales{.block = GroupedColumns::kBlock};
constexpr ScaleLayout kSquareScales{.block = GroupedColumns::kBlock, .square = true};

// Rows that end in a block, fill it, and go beyond it; experts without rows at both ends and
// between others; one expert; rows of no expert.
inline const std::vector<Groups>& awkward_copies() {
  static const std::vector<Groups> list = {{{1}, 128, 128},
                                           {{0, 5, 0, 128, 3, 129, 0}, 128, 256, 4},
                                           {{127, 1, 300}, 256, 128, 130},
                                           {{0, 0}, 128, 128, 3},
                                           {{260}, 384, 128, 1}};
  return list;
}

inline int64_t columns_of(const Groups& g) {
  return GroupedColumns::width(g.rows(), g.num_experts());
}

/// Calls visit(expert, its first row, its rows) for all experts.
template <class Visit>
void for_each_expert(const Groups& g, const Visit& visit) {
  int64_t row = 0;
  for (int64_t e = 0; e < g.num_experts(); ++e) {
    const int64_t count = g.counts[static_cast<size_t>(e)];
    visit(e, row, count);
    row += count;
  }
}

/// The copies of x [rows, g.in], which holds values of very different sizes.
inline KernelCase quantize_grouped_case(DType dtype, const Groups& g,
                                        const QuantizeGroupedAttributes& attributes = {},
                                        DType format = DType::kF8E4M3) {
  std::vector<OperandSpec> operands{read(dtype, {g.rows(), g.in}),
                                    read(DType::kI32, {g.num_experts() + 1})};
  const auto add_copy = [&](const Shape& shape) {
    operands.push_back(write(format, shape));
    operands.push_back(write(DType::kF32, kRunScales.shape(shape)));
  };
  if (attributes.row) {
    add_copy({g.rows(), g.in});
  }
  if (attributes.column) {
    add_copy({g.in, columns_of(g)});
  }
  if (attributes.watch.watch) {
    operands.push_back(tally_spec(Fp8Tally::kSize));
  }
  KernelCase kernel({"quantize_grouped", to_attributes(attributes), std::move(operands)});
  TestRandom random(5);
  std::vector<double> x;
  for (int64_t i = 0; i < g.rows() * g.in; ++i) {
    x.push_back(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(20)) - 10));
  }
  kernel.set(0, x);
  kernel.set(1, g.offsets());
  poison_unused(kernel, 0, g);
  return kernel;
}

/// All finite elements, and powers of two as scales.
inline void fill_factor(KernelCase& kernel, size_t operand, uint64_t seed) {
  TestRandom random(seed);
  kernel.set(operand, random.uniforms(kernel.num_elems(operand), -10, 10));
  std::vector<double> powers(static_cast<size_t>(kernel.num_elems(operand + 1)));
  for (double& power : powers) {
    power = std::ldexp(1.0, static_cast<int>(random.below(9)) - 4);
  }
  kernel.set(operand + 1, powers);
}

/// Makes scales of rows of no expert NaN, of a factor [rows, depth].
inline void poison_row_scales(KernelCase& kernel, size_t scales, const Groups& g) {
  std::vector<double> values = kernel.values(scales);
  for (size_t i = 0; i < values.size(); ++i) {
    if (static_cast<int64_t>(i) % g.rows() >= g.used_rows()) {
      values[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  kernel.set(scales, values);
}

/// For each column of GroupedColumns: 1 for that of a row, 0 for one behind the rows in the last
/// block of an expert, -1 for one of no expert.
inline std::vector<int> column_kinds(const Groups& g) {
  std::vector<int> kinds(static_cast<size_t>(columns_of(g)), -1);
  for_each_expert(g, [&](int64_t e, int64_t first, int64_t count) {
    const auto begin = kinds.begin() + static_cast<ptrdiff_t>(GroupedColumns::begin(first, e));
    const int64_t padded =
        (count + GroupedColumns::kBlock - 1) / GroupedColumns::kBlock * GroupedColumns::kBlock;
    std::fill_n(begin, padded, 0);
    std::fill_n(begin, count, 1);
  });
  return kinds;
}

/// Columns of a factor as quantize_grouped leaves them: zero behind rows, NaN where no expert is.
inline void set_padding(KernelCase& kernel, size_t operand, const Groups& g) {
  const std::vector<int> kinds = column_kinds(g);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> data = kernel.values(operand);
  for (size_t i = 0; i < data.size(); ++i) {
    const int kind = kinds[i % kinds.size()];
    data[i] = kind == 1 ? data[i] : kind == 0 ? 0.0 : nan;
  }
  kernel.set(operand, data);
  std::vector<double> scales = kernel.values(operand + 1);
  const size_t width = scales.size() / (kinds.size() / size_t{GroupedColumns::kBlock});
  for (size_t i = 0; i < scales.size(); ++i) {
    if (kinds[i / width * size_t{GroupedColumns::kBlock}] < 0) {
      scales[i] = nan;
    }
  }
  kernel.set(operand + 1, scales);
}

/// x [rows, g.in] by w_e [g.out, g.in], or the gradient of x from dy [rows, g.out].
/// `dy_format`: of dy, which is the first factor with `is_dgrad`.
inline KernelCase scaled_grouped_case(const Groups& g, bool is_dgrad, DType result,
                                      const EmulatedSums& sums = {},
                                      DType dy_format = DType::kF8E5M2) {
  const int64_t depth = is_dgrad ? g.out : g.in;
  const Shape x{g.rows(), depth};
  const Shape w = is_dgrad ? Shape{g.in, g.weights()} : Shape{g.weights(), g.in};
  const DType format = is_dgrad ? dy_format : DType::kF8E4M3;
  KernelCase kernel(
      {is_dgrad ? "scaled_grouped_linear_dgrad" : "scaled_grouped_linear",
       to_attributes(ScaledGroupedLinearAttributes{.sums = sums}),
       {read(format, x), read(DType::kF32, kRunScales.shape(x)), read(DType::kF8E4M3, w),
        read(DType::kF32, kSquareScales.shape(w)), read(DType::kI32, {g.num_experts() + 1}),
        write(result, {g.rows(), is_dgrad ? g.in : g.out})}});
  fill_factor(kernel, 0, 1);
  fill_factor(kernel, 2, 2);
  kernel.set(4, g.offsets());
  poison_unused(kernel, 0, g);
  poison_row_scales(kernel, 1, g);
  return kernel;
}

inline KernelCase scaled_grouped_wgrad_case(const Groups& g, bool accumulate,
                                            const EmulatedSums& sums = {},
                                            DType format = DType::kF8E5M2) {
  const Shape x{g.in, columns_of(g)};
  const Shape dy{g.out, columns_of(g)};
  KernelCase kernel(
      {"scaled_grouped_linear_wgrad",
       to_attributes(
           ScaledGroupedWgradAttributes{.rows = g.rows(), .accumulate = accumulate, .sums = sums}),
       {read(DType::kF8E4M3, x), read(DType::kF32, kRunScales.shape(x)), read(format, dy),
        read(DType::kF32, kRunScales.shape(dy)), read(DType::kI32, {g.num_experts() + 1}),
        gradient(accumulate, DType::kF32, {g.weights(), g.in})}});
  fill_factor(kernel, 0, 3);
  fill_factor(kernel, 2, 4);
  kernel.set(4, g.offsets());
  set_padding(kernel, 0, g);
  set_padding(kernel, 2, g);
  return kernel;
}

/// Elements of a factor times their scales.
class ScaledElements {
 public:
  ScaledElements(const KernelCase& kernel, size_t operand, bool is_weight)
      : shape_(kernel.spec().operands[operand].shape),
        scales_shape_(kernel.spec().operands[operand + 1].shape),
        is_weight_(is_weight),
        data_(kernel.values(operand)),
        scales_(kernel.values(operand + 1)) {}

  double operator()(int64_t row, int64_t at) const {
    const int64_t run = at / GroupedColumns::kBlock;
    const int64_t scale = is_weight_ ? row / GroupedColumns::kBlock * scales_shape_[1] + run
                                     : run * scales_shape_[1] + row;
    return data_[size_t(row * shape_[1] + at)] * scales_[size_t(scale)];
  }

 private:
  Shape shape_;
  Shape scales_shape_;
  bool is_weight_;
  std::vector<double> data_;
  std::vector<double> scales_;
};

/// The results of a case in double precision; rows of no expert stay NaN, as they were.
inline std::vector<double> naive_rows(const KernelCase& kernel, const Groups& g, bool is_dgrad) {
  const ScaledElements x(kernel, 0, /*is_weight=*/false);
  const ScaledElements w(kernel, 2, /*is_weight=*/true);
  const int64_t width = is_dgrad ? g.in : g.out;
  std::vector<double> y(size_t(g.rows() * width), std::numeric_limits<double>::quiet_NaN());
  for_each_expert(g, [&](int64_t e, int64_t first, int64_t count) {
    for (int64_t i = first * width; i < (first + count) * width; ++i) {
      double sum = 0;
      for (int64_t d = 0; d < (is_dgrad ? g.out : g.in); ++d) {
        sum += x(i / width, d) *
               (is_dgrad ? w(i % width, e * g.out + d) : w(e * g.out + i % width, d));
      }
      y[size_t(i)] = sum;
    }
  });
  return y;
}

inline std::vector<double> naive_wgrad(const KernelCase& kernel, const Groups& g, bool accumulate) {
  const ScaledElements x(kernel, 0, /*is_weight=*/false);
  const ScaledElements dy(kernel, 2, /*is_weight=*/false);
  std::vector<double> dw =
      accumulate ? kernel.values(5) : std::vector<double>(size_t(g.weights() * g.in));
  for_each_expert(g, [&](int64_t e, int64_t first, int64_t count) {
    const int64_t begin = (first / GroupedColumns::kBlock + e) * GroupedColumns::kBlock;
    for (int64_t i = 0; i < g.out * g.in; ++i) {
      for (int64_t d = begin; d < begin + count; ++d) {
        dw[size_t(e * g.out * g.in + i)] += dy(i / g.in, d) * x(i % g.in, d);
      }
    }
  });
  return dw;
}

/// Compares the last operand. `tolerance`: of f32 results, relative to the largest of all.
inline void expect_near(const KernelCase& kernel, const std::vector<double>& expected,
                        double tolerance) {
  const size_t result = kernel.spec().operands.size() - 1;
  double largest = 1;
  for (const double value : expected) {
    largest = std::max(largest, std::isnan(value) ? 0.0 : std::abs(value));
  }
  const bool is_bf16 = kernel.spec().operands[result].dtype == DType::kBF16;
  const double allowed = (is_bf16 ? 8e-3 : tolerance) * largest;
  const std::vector<double> found = kernel.values(result);
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(found[i])) << "element " << i << " was written";
    } else {
      ASSERT_NEAR(found[i], expected[i], allowed) << i;
    }
  }
}

}  // namespace braid
