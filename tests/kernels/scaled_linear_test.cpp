#include "ops/scaled_linear.h"

#include <cmath>
#include <optional>

#include "ops/quantize.h"
#include "support/hopper_reference.h"
#include "support/kernel_harness.h"
#include "support/thinned.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t in;
  int64_t out;
};

const std::vector<Sizes> kSizes =
    thinned<Sizes>({{1, 1, 1}, {3, 130, 5}, {300, 48, 17}, {33, 257, 140}}, 2);
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
  double scale_at(const std::vector<double>& scale, int64_t r, int64_t d) const {
    size_t index = 0;
    if (scales.block != 0) {
      const int64_t width = scales.shape(shape)[1];
      index = static_cast<size_t>(scales.square ? r / scales.block * width + d / scales.block
                                                : d / scales.block * width + r);
    }
    return scale[index];
  }
  /// Element times scale.
  double at(const std::vector<double>& data, const std::vector<double>& scale, int64_t r,
            int64_t d) const {
    return data[static_cast<size_t>(r * shape[1] + d)] * scale_at(scale, r, d);
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
      for (const DType result : thinned<DType>({DType::kBF16, DType::kF32}, 2)) {
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

/// A factor of a kernel, as tensor cores of Hopper read it: with its scales only if they are those
/// of 32 elements, which are multiplied as bf16.
class HopperFactor {
 public:
  HopperFactor(const KernelCase& kernel, Factor factor, size_t operand)
      : factor_(std::move(factor)),
        data_(kernel.values(operand)),
        scales_(kernel.values(operand + 1)) {}

  int64_t depth() const { return factor_.shape[1]; }
  bool is_bf16() const { return factor_.scales.block == 32; }
  float scale(int64_t r, int64_t d) const {
    return is_bf16() ? 1.0F : static_cast<float>(factor_.scale_at(scales_, r, d));
  }
  ReferenceRow row(int64_t r, int64_t begin, int64_t end) const {
    ReferenceRow row{
        .values = {},
        .least_exponent = least_exponent_of(is_bf16() ? DType::kBF16 : factor_.format)};
    for (int64_t d = begin; d < end; ++d) {
      row.values.push_back(is_bf16() ? factor_.at(data_, scales_, r, d)
                                     : data_[static_cast<size_t>(r * depth() + d)]);
    }
    return row;
  }

 private:
  Factor factor_;
  std::vector<double> data_;
  std::vector<double> scales_;
};

/// Element [i, j] of a b^T as cuBLASLt on Hopper sums it. `run`: products after which the
/// accumulator is added to an fp32 sum.
float hopper_element(const HopperFactor& a, const HopperFactor& b, int64_t run, int64_t i,
                     int64_t j) {
  const TensorCore core = a.is_bf16() ? kHopperBf16 : kHopperFp8;
  float total = 0;
  for (int64_t begin = 0; begin < a.depth(); begin += run) {
    const int64_t end = std::min(begin + run, a.depth());
    const float partial =
        tensor_core_reference(core, a.row(i, begin, end), b.row(j, begin, end), 0);
    total = std::fma(partial, a.scale(i, begin) * b.scale(j, begin), total);
  }
  return total;
}

int64_t run_of(int64_t block, int64_t depth, bool is_fast) {
  return block == 32 || (block == 0 && is_fast) ? depth : 128;
}

constexpr Sizes kHopperSizes[] = {{1, 1, 1}, {3, 130, 5}, {16, 400, 136}};
constexpr EmulatedSums kHopperSums{.hopper_sums = true};

TEST(ScaledLinear, ForwardWithTheSumsOfHopper) {
  for (const Sizes& s : kHopperSizes) {
    for (const int64_t block : kBlocks) {
      const Factor x{{s.rows, s.in}, {.block = block}, DType::kF8E5M2};
      const Factor w{{s.out, s.in}, {.block = block, .square = block == 128}};
      std::vector<OperandSpec> operands;
      x.add_to(operands);
      w.add_to(operands);
      operands.push_back(read(DType::kF32, {s.out}));
      operands.push_back(write(DType::kF32, {s.rows, s.out}));
      KernelCase kernel({"scaled_linear",
                         to_attributes(ScaledLinearAttributes{
                             .block = block, .has_bias = true, .sums = kHopperSums}),
                         operands});
      x.fill(kernel, 0, 1);
      w.fill(kernel, 2, 2);
      kernel.run(2);
      const HopperFactor a(kernel, x, 0);
      const HopperFactor b(kernel, w, 2);
      const std::vector<double> bias = kernel.values(4);
      const std::vector<double> y = kernel.values(5);
      for (int64_t i = 0; i < s.rows * s.out; ++i) {
        const int64_t j = i % s.out;
        const float sum = hopper_element(a, b, run_of(block, s.in, true), i / s.out, j);
        ASSERT_EQ(y[static_cast<size_t>(i)], sum + static_cast<float>(bias[static_cast<size_t>(j)]))
            << "block " << block << ", element " << i;
      }
    }
  }
}

TEST(ScaledLinear, DgradWithTheSumsOfHopper) {
  for (const Sizes& s : kHopperSizes) {
    for (const int64_t block : kBlocks) {
      const Factor dy{{s.rows, s.in}, {.block = block}, DType::kF8E5M2};
      const Factor w{{s.out, s.in}, {.block = block, .square = block == 128}};
      std::vector<OperandSpec> operands;
      dy.add_to(operands);
      w.add_to(operands);
      operands.push_back(write(DType::kBF16, {s.rows, s.out}));
      KernelCase kernel(
          {"scaled_linear_dgrad",
           to_attributes(ScaledLinearDgradAttributes{.block = block, .sums = kHopperSums}),
           operands});
      dy.fill(kernel, 0, 3);
      w.fill(kernel, 2, 4);
      kernel.run(2);
      const HopperFactor a(kernel, dy, 0);
      const HopperFactor b(kernel, w, 2);
      const std::vector<double> dx = kernel.values(4);
      for (int64_t i = 0; i < s.rows * s.out; ++i) {
        const float sum = hopper_element(a, b, run_of(block, s.in, false), i / s.out, i % s.out);
        ASSERT_EQ(dx[static_cast<size_t>(i)], rounded_to(DType::kBF16, static_cast<double>(sum)))
            << "block " << block << ", element " << i;
      }
    }
  }
}

// dw has the rows of dy, the second factor.
TEST(ScaledLinear, WgradWithTheSumsOfHopper) {
  for (const Sizes& s : kHopperSizes) {
    for (const int64_t block : kBlocks) {
      const Factor x{{s.rows, s.in}, {.block = block}};
      const Factor dy{{s.out, s.in}, {.block = block}, DType::kF8E5M2};
      std::vector<OperandSpec> operands;
      x.add_to(operands);
      dy.add_to(operands);
      operands.push_back(read_write(DType::kF32, {s.out, s.rows}));
      KernelCase kernel(
          {"scaled_linear_wgrad",
           to_attributes(ScaledLinearWgradAttributes{.block = block, .sums = kHopperSums}),
           operands});
      x.fill(kernel, 0, 5);
      dy.fill(kernel, 2, 6);
      const std::vector<double> before = kernel.values(4);
      kernel.run(2);
      const HopperFactor a(kernel, dy, 2);
      const HopperFactor b(kernel, x, 0);
      const std::vector<double> dw = kernel.values(4);
      for (int64_t i = 0; i < s.rows * s.out; ++i) {
        const float sum = hopper_element(a, b, run_of(block, s.in, false), i / s.rows, i % s.rows);
        ASSERT_EQ(dw[static_cast<size_t>(i)],
                  sum + static_cast<float>(before[static_cast<size_t>(i)]))
            << "block " << block << ", element " << i;
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
