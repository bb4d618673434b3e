#include "ops/scaled_linear.h"

#include <cmath>
#include <optional>

#include "ops/quantize.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t in;
  int64_t out;
};

constexpr Sizes kSizes[] = {{1, 1, 1}, {3, 130, 5}, {300, 48, 17}, {33, 257, 140}};
constexpr int64_t kBlocks[] = {0, 32, 128};

/// A factor and its scales, filled with all finite elements and with powers of two.
struct Factor {
  Shape shape;
  ScaleLayout scales;
  DType format = DType::kF8E4M3;

  void add_to(std::vector<OperandSpec>& operands) const {
    operands.push_back(read(format, shape));
    operands.push_back(read(scales.dtype(), scales.shape(shape)));
  }
  void fill(KernelCase& kernel, size_t operand, uint64_t seed) const {
    TestRandom random(seed);
    kernel.set(operand, random.uniforms(shape.num_elems(), -10, 10));
    std::vector<double> powers(static_cast<size_t>(kernel.num_elems(operand + 1)));
    std::ranges::generate(powers, [&] { return std::ldexp(1.0, int(random.below(9)) - 4); });
    kernel.set(operand + 1, powers);
  }
  /// Element times scale.
  double at(const std::vector<double>& data, const std::vector<double>& scale, int64_t r,
            int64_t d) const {
    size_t index = 0;
    if (scales.block != 0) {
      const int64_t width = scales.shape(shape)[1];
      index = static_cast<size_t>(scales.square ? r / scales.block * width + d / scales.block
                                                : d / scales.block * width + r);
    }
    return data[static_cast<size_t>(r * shape[1] + d)] * scale[index];
  }
};

/// a b^T of the operands from 0 and from 2 on.
std::vector<double> product(const KernelCase& kernel, const Factor& a, size_t a_operand,
                            const Factor& b, size_t b_operand, std::vector<double> to) {
  const auto values = [&](size_t operand) { return kernel.values(operand); };
  const auto a_data = values(a_operand);
  const auto a_scales = values(a_operand + 1);
  const auto b_data = values(b_operand);
  const auto b_scales = values(b_operand + 1);
  for (int64_t r = 0; r < a.shape[0]; ++r) {
    for (int64_t c = 0; c < b.shape[0]; ++c) {
      double& sum = to[static_cast<size_t>(r * b.shape[0] + c)];
      for (int64_t d = 0; d < a.shape[1]; ++d) {
        sum += a.at(a_data, a_scales, r, d) * b.at(b_data, b_scales, c, d);
      }
    }
  }
  return to;
}

double tolerance(DType dtype) {
  return dtype == DType::kBF16 ? 8e-3 : 1e-5;
}

/// Values of a product of these factors are up to about 100 * depth * 256.
void expect_near(const KernelCase& kernel, size_t operand, const std::vector<double>& expected) {
  double largest = 1;
  for (const double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  const std::vector<double> found = kernel.values(operand);
  const double allowed = tolerance(kernel.spec().operands[operand].dtype) * largest;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], allowed) << i;
  }
}

void check_forward(DType result, Sizes s, int64_t block, bool has_bias) {
  const Factor x{{s.rows, s.in}, {.block = block}};
  const Factor w{{s.out, s.in}, {.block = block, .square = block == 128}};
  std::vector<OperandSpec> operands;
  x.add_to(operands);
  w.add_to(operands);
  if (has_bias) {
    operands.push_back(read(result, {s.out}));
  }
  operands.push_back(write(result, {s.rows, s.out}));
  KernelCase kernel({"scaled_linear",
                     to_attributes(ScaledLinearAttributes{.block = block, .has_bias = has_bias}),
                     operands});
  x.fill(kernel, 0, 1);
  w.fill(kernel, 2, 2);
  std::vector<double> expected(static_cast<size_t>(s.rows * s.out), 0.0);
  if (has_bias) {
    const std::vector<double> bias = kernel.values(4);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = bias[i % bias.size()];
    }
  }
  expected = product(kernel, x, 0, w, 2, std::move(expected));
  kernel.run(2);
  expect_near(kernel, operands.size() - 1, expected);
}

TEST(ScaledLinear, Forward) {
  for (const Sizes& sizes : kSizes) {
    for (const int64_t block : kBlocks) {
      for (const DType result : {DType::kF32, DType::kBF16}) {
        check_forward(result, sizes, block, false);
        check_forward(result, sizes, block, true);
      }
    }
  }
}

TEST(ScaledLinear, Dgrad) {
  for (const Sizes& s : kSizes) {
    for (const int64_t block : kBlocks) {
      const Factor dy{{s.rows, s.out}, {.block = block}, DType::kF8E5M2};
      const Factor w{{s.in, s.out}, {.block = block, .square = block == 128}};
      std::vector<OperandSpec> operands;
      dy.add_to(operands);
      w.add_to(operands);
      operands.push_back(write(DType::kBF16, {s.rows, s.in}));
      KernelCase kernel({"scaled_linear_dgrad",
                         to_attributes(ScaledLinearDgradAttributes{.block = block}), operands});
      dy.fill(kernel, 0, 3);
      w.fill(kernel, 2, 4);
      const std::vector<double> expected = product(
          kernel, dy, 0, w, 2, std::vector<double>(static_cast<size_t>(kernel.num_elems(4)), 0.0));
      kernel.run(2);
      expect_near(kernel, 4, expected);
    }
  }
}

TEST(ScaledLinear, WgradOverwritesOrAdds) {
  for (const Sizes& s : kSizes) {
    for (const int64_t block : kBlocks) {
      for (const bool accumulate : {false, true}) {
        const Factor x{{s.in, s.rows}, {.block = block}};
        const Factor dy{{s.out, s.rows}, {.block = block}, DType::kF8E5M2};
        std::vector<OperandSpec> operands;
        x.add_to(operands);
        dy.add_to(operands);
        operands.push_back(gradient(accumulate, DType::kF32, {s.out, s.in}));
        KernelCase kernel(
            {"scaled_linear_wgrad",
             to_attributes(ScaledLinearWgradAttributes{.block = block, .accumulate = accumulate}),
             operands});
        x.fill(kernel, 0, 5);
        dy.fill(kernel, 2, 6);
        std::vector<double> before =
            accumulate ? kernel.values(4)
                       : std::vector<double>(static_cast<size_t>(kernel.num_elems(4)), 0.0);
        const std::vector<double> expected = product(kernel, dy, 2, x, 0, std::move(before));
        kernel.run(2);
        expect_near(kernel, 4, expected);
      }
    }
  }
}

TEST(ScaledLinear, ScaleThatIsNaNIsSeen) {
  const Factor x{{2, 128}, {.block = 128}};
  const Factor w{{3, 128}, {.block = 128, .square = true}};
  std::vector<OperandSpec> operands;
  x.add_to(operands);
  w.add_to(operands);
  operands.push_back(write(DType::kF32, {2, 3}));
  KernelCase kernel({"scaled_linear", to_attributes(ScaledLinearAttributes{}), operands});
  x.fill(kernel, 0, 1);
  w.fill(kernel, 2, 2);
  kernel.set(1, {1.0, std::nan("")});
  kernel.run();
  const std::vector<double> y = kernel.values(4);
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(std::isnan(y[i]), i >= 3);
  }
}

}  // namespace
}  // namespace braid
