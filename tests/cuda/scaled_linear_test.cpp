// Products against sums in double precision of the factors' exact values.
#include "ops/scaled_linear.h"

#include "base/float8.h"
#include "ops/quantize.h"
#include "support/cuda_operand_bytes.h"

namespace braid {
namespace {

using ScaledLinearCudaTest = CudaKernelTest;

constexpr DType kE4M3 = DType::kF8E4M3;
constexpr DType kE5M2 = DType::kF8E5M2;
constexpr DType kBF16 = DType::kBF16;

/// Rows of both factors, and the length of the sums.
struct Sizes {
  int64_t first;
  int64_t second;
  int64_t depth;
};

/// Multiples of 8 and 16, as cuBLASLt's FP8 products need: the least ones, blocks of 128 that are
/// cut off, whole ones, and more tiles than one. Then sizes that it does not take.
constexpr Sizes kSizes[] = {{8, 16, 16},      {136, 400, 272}, {256, 128, 384},
                            {264, 136, 1040}, {24, 264, 2064}, {5, 3, 7},
                            {128, 24, 136},   {33, 68, 96},    {130, 257, 300}};
constexpr int64_t kBlocks[] = {0, 32, 128};

/// A factor's operands and its exact values.
struct Factor {
  OperandSpec data_spec;
  OperandSpec scales_spec;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<double> values;  // [rows, depth]
};

double element_value(DType format, uint8_t bits) {
  return static_cast<double>(format == kE5M2 ? static_cast<float>(Float8E5M2::from_bits(bits))
                                             : static_cast<float>(Float8E4M3::from_bits(bits)));
}

/// Any finite element.
uint8_t random_element(DType format, TestRandom& random) {
  const auto bits = static_cast<uint8_t>(random.below(256));
  return std::isfinite(element_value(format, bits)) ? bits : uint8_t{0x38};
}

/// Elements as quantize would write them: some near the format's largest number, most much smaller.
uint8_t usual_element(DType format, TestRandom& random) {
  const double largest = format == kE5M2 ? 57344 : 448;
  const auto value = static_cast<float>(largest * random.uniform(-1, 1) * random.uniform(0, 1));
  return random.below(64) == 0 ? random_element(format, random)
         : format == kE5M2     ? Float8E5M2(value).bits
                               : Float8E4M3(value).bits;
}

Factor random_factor(DType format, int64_t rows, int64_t depth, const ScaleLayout& layout,
                     TestRandom& random) {
  Factor factor{.data_spec = read(format, {rows, depth}),
                .scales_spec = read(layout.dtype(), layout.shape({rows, depth})),
                .values = std::vector<double>(static_cast<size_t>(rows * depth))};
  const auto num_scales = static_cast<size_t>(factor.scales_spec.shape.num_elems());
  factor.scales.resize(num_scales * dtype_bytes(layout.dtype()));
  std::vector<double> scales;
  for (size_t i = 0; i < num_scales; ++i) {
    const auto exponent = static_cast<int>(random.below(9)) - 12;
    scales.push_back(std::ldexp(1.0, exponent));
    if (layout.dtype() == DType::kF32) {
      store_double(DType::kF32, factor.scales.data() + i * sizeof(float), scales.back());
    } else {
      factor.scales[i] = std::byte{Fp8Scale::to_e8m0(exponent)};
    }
  }
  for (int64_t i = 0; i < rows * depth; ++i) {
    const uint8_t bits = usual_element(format, random);
    factor.data.push_back(std::byte{bits});
    const int64_t row = i / depth;
    const int64_t run = layout.block == 0 ? 0 : i % depth / layout.block;
    const int64_t at = layout.block == 0 ? 0
                       : layout.square   ? row / layout.block * factor.scales_spec.shape[1] + run
                                         : run * rows + row;
    factor.values[static_cast<size_t>(i)] =
        element_value(format, bits) * scales[static_cast<size_t>(at)];
  }
  return factor;
}

/// Sums, and the root of the sum of squares of their terms: the size of a typical sum of them.
struct Sums {
  std::vector<double> values;
  std::vector<double> sizes;
};

/// [rows of a, rows of b]
Sums multiplied(const Factor& a, const Factor& b) {
  const int64_t depth = a.data_spec.shape[1];
  Sums sums;
  for (int64_t i = 0; i < a.data_spec.shape[0]; ++i) {
    for (int64_t j = 0; j < b.data_spec.shape[0]; ++j) {
      const double* const row = a.values.data() + i * depth;
      const double* const other = b.values.data() + j * depth;
      double sum = 0;
      double squares = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const double term = row[k] * other[k];
        sum += term;
        squares += term * term;
      }
      sums.values.push_back(sum);
      sums.sizes.push_back(std::sqrt(squares));
    }
  }
  return sums;
}

/// Tensor cores align 32 products to the largest of them and keep 13 bits of the fraction: measured
/// on an H200, this costs 1.3e-4 of a typical sum, or 4e-4 to 1e-3 if sums stay in their
/// accumulators. The limits are for the worst element instead of the norm of all.
constexpr double kPromotedError = 2.5e-3;
constexpr double kFastError = 6e-3;

struct Case {
  OpSpec spec;
  OperandBytes operands;
  Factor a;  // the last operand is a b^T
  Factor b;
  std::vector<double> added;  // bias or old values
  double sum_error = kPromotedError;
  std::string name;
};

void append(Case& product, const Factor& factor) {
  product.spec.operands.push_back(factor.data_spec);
  product.spec.operands.push_back(factor.scales_spec);
  product.operands.push_back(factor.data);
  product.operands.push_back(factor.scales);
}

void append_result(Case& product, const OperandSpec& result) {
  product.spec.operands.push_back(result);
  product.operands.push_back(poisoned_bytes(result));
}

/// scaled_linear or scaled_linear_dgrad: [first, second] = a b^T (+ bias).
Case forward_case(const std::string& op, Sizes s, int64_t block, DType first_format, DType format,
                  bool has_bias, bool adds_bias, uint64_t seed) {
  TestRandom random(seed);
  const Factor a = random_factor(first_format, s.first, s.depth, {.block = block}, random);
  const Factor b =
      random_factor(format, s.second, s.depth, {.block = block, .square = block == 128}, random);
  Case product{
      .a = a,
      .b = b,
      .added = std::vector<double>(static_cast<size_t>(s.first * s.second)),
      .name = fmt::format("{} [{},{}] x {} block {}", op, s.first, s.depth, s.second, block)};
  product.spec.op = op;
  append(product, a);
  append(product, b);
  if (op == "scaled_linear_dgrad") {
    product.spec.attributes = to_attributes(ScaledLinearDgradAttributes{.block = block});
  } else {
    product.sum_error = block == 0 ? kFastError : kPromotedError;
    product.spec.attributes = to_attributes(
        ScaledLinearAttributes{.block = block, .has_bias = has_bias, .adds_bias = adds_bias});
  }
  if (has_bias) {
    append_result(product, read(kBF16, {s.second}));
    for (int64_t j = 0; adds_bias && j < s.second; ++j) {
      const double bias = rounded_to(kBF16, random.uniform(-50, 50));
      store_double(kBF16, product.operands.back().data() + 2 * j, bias);
      for (int64_t i = 0; i < s.first; ++i) {
        product.added[static_cast<size_t>(i * s.second + j)] = bias;
      }
    }
  }
  append_result(product, write(kBF16, {s.first, s.second}));
  return product;
}

/// dw [second, first] (+)= dy^T x: x^T is the first factor.
Case wgrad_case(Sizes s, int64_t block, DType x_format, DType dy_format, bool accumulate,
                uint64_t seed) {
  TestRandom random(seed);
  const Factor x = random_factor(x_format, s.first, s.depth, {.block = block}, random);
  const Factor dy = random_factor(dy_format, s.second, s.depth, {.block = block}, random);
  Case product{.a = dy,
               .b = x,
               .added = std::vector<double>(static_cast<size_t>(s.first * s.second)),
               .name = fmt::format("wgrad [{},{}] x {} block {}{}", s.first, s.depth, s.second,
                                   block, accumulate ? " accumulate" : "")};
  product.spec.op = "scaled_linear_wgrad";
  product.spec.attributes =
      to_attributes(ScaledLinearWgradAttributes{.block = block, .accumulate = accumulate});
  append(product, x);
  append(product, dy);
  append_result(product, gradient(accumulate, DType::kF32, {s.second, s.first}));
  for (size_t i = 0; accumulate && i < product.added.size(); ++i) {
    product.added[i] = rounded_to(DType::kF32, random.uniform(-50, 50));
    store_double(DType::kF32, product.operands.back().data() + i * sizeof(float), product.added[i]);
  }
  return product;
}

/// What is added may be added to the product after it has been rounded to the result's type.
void expect_close_to_sums(const Case& product, const std::vector<double>& actual) {
  const double rounding = 2 * rounding_error(product.spec.operands.back().dtype);
  const Sums sums = multiplied(product.a, product.b);
  ASSERT_EQ(actual.size(), sums.values.size());
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double sum = sums.values[i];
    const double added = product.added[i];
    const double limit = product.sum_error * sums.sizes[i] +
                         rounding * (std::abs(sum) + std::abs(sum + added)) + 1e-30;
    const double excess = std::abs(actual[i] - sum - added) / limit;
    if (!(excess <= worst)) {
      worst = excess;
      at = i;
    }
  }
  EXPECT_LE(worst, 1) << product.name << " element " << at << ": " << actual[at] << ", expected "
                      << sums.values[at] + product.added[at];
}

void expect_equal_to_sums(const Case& product, CudaContext& context) {
  const OperandBytes results = run_on_cuda(product.spec, product.operands, context);
  expect_close_to_sums(product, to_doubles(product.spec.operands.back().dtype, results.back()));
}

TEST_F(ScaledLinearCudaTest, ForwardEqualsExactSums) {
  for (const int64_t block : kBlocks) {
    for (const Sizes s : kSizes) {
      for (const bool has_bias : {false, true}) {
        expect_equal_to_sums(
            forward_case("scaled_linear", s, block, kE4M3, kE4M3, has_bias, true, 1), context());
      }
    }
  }
}

// The poisoned bias is NaN, which must not show.
TEST_F(ScaledLinearCudaTest, LeavesABiasOutOnRequest) {
  for (const int64_t block : kBlocks) {
    expect_equal_to_sums(
        forward_case("scaled_linear", {136, 400, 272}, block, kE4M3, kE4M3, true, false, 1),
        context());
  }
}

TEST_F(ScaledLinearCudaTest, DgradEqualsExactSums) {
  for (const int64_t block : kBlocks) {
    for (const Sizes s : kSizes) {
      for (const DType dy_format : {kE4M3, kE5M2}) {
        expect_equal_to_sums(
            forward_case("scaled_linear_dgrad", s, block, dy_format, kE4M3, false, false, 2),
            context());
      }
    }
  }
}

TEST_F(ScaledLinearCudaTest, WgradEqualsExactSums) {
  for (const int64_t block : kBlocks) {
    for (const Sizes s : kSizes) {
      for (const DType dy_format : {kE4M3, kE5M2}) {
        for (const bool accumulate : {false, true}) {
          expect_equal_to_sums(wgrad_case(s, block, kE4M3, dy_format, accumulate, 3), context());
        }
      }
    }
  }
}

TEST_F(ScaledLinearCudaTest, BothFactorsMayBeTheOneInE5M2) {
  for (const int64_t block : kBlocks) {
    expect_equal_to_sums(wgrad_case({136, 400, 272}, block, kE5M2, kE4M3, true, 4), context());
    expect_equal_to_sums(
        forward_case("scaled_linear", {136, 400, 272}, block, kE4M3, kE5M2, false, true, 4),
        context());
  }
}

/// The same product with the CPU's emulation of Hopper's sums.
std::vector<double> emulated(Case product) {
  product.spec.attributes.push_back({"hopper_sums", true});
  return to_doubles(product.spec.operands.back().dtype,
                    run_on_cpu(product.spec, product.operands).back());
}

/// Which elements differ, and by how much, in one line.
std::string difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  int64_t count = 0;
  double largest = 0;
  size_t first = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] != expected[i]) {
      first = count == 0 ? i : first;
      largest = std::max(largest, std::abs(actual[i] - expected[i]) / std::abs(expected[i]));
      ++count;
    }
  }
  return count == 0 ? ""
                    : fmt::format(
                          "{} of {} elements differ, by up to {:.2e} of their value; the first is "
                          "{}: {:a} on the device, {:a} emulated",
                          count, actual.size(), largest, first, actual[first], expected[first]);
}

// Of short sums, whose depth cuBLASLt has no reason to split: the order of its parts is not known.
// With runs of 32, factors are multiplied as bf16, in an order that the library chooses.
TEST_F(ScaledLinearCudaTest, HasTheBitsOfTheEmulation) {
  for (const int64_t block : {0, 128}) {
    for (const Sizes s :
         {Sizes{128, 128, 32}, Sizes{128, 128, 128}, Sizes{256, 128, 384}, Sizes{264, 136, 1040}}) {
      for (const Case& product :
           {forward_case("scaled_linear", s, block, kE4M3, kE4M3, false, true, 8),
            forward_case("scaled_linear_dgrad", s, block, kE5M2, kE4M3, false, true, 9),
            wgrad_case(s, block, kE4M3, kE5M2, false, 10)}) {
        const OperandBytes results = run_on_cuda(product.spec, product.operands, context());
        EXPECT_EQ(difference(to_doubles(product.spec.operands.back().dtype, results.back()),
                             emulated(product)),
                  "")
            << product.name;
      }
    }
  }
}

TEST_F(ScaledLinearCudaTest, NanScalesMakeNanResults) {
  for (const int64_t block : kBlocks) {
    Case product = wgrad_case({136, 400, 272}, block, kE4M3, kE4M3, false, 5);
    std::fill(product.operands[1].begin(), product.operands[1].end(), std::byte{0xFF});
    const OperandBytes results = run_on_cuda(product.spec, product.operands, context());
    for (const double value : to_doubles(DType::kF32, results.back())) {
      ASSERT_TRUE(std::isnan(value)) << "block " << block;
    }
  }
}

TEST_F(ScaledLinearCudaTest, RerunsAreBitwiseEqual) {
  const Sizes sizes{520, 776, 1040};
  for (const int64_t block : kBlocks) {
    for (const bool is_wgrad : {false, true}) {
      CudaContext remembering(0, testing::TempDir() + "/braid_scaled_linear_cuda_test");
      const Case product =
          is_wgrad ? wgrad_case(sizes, block, kE4M3, kE5M2, true, 6)
                   : forward_case("scaled_linear", sizes, block, kE4M3, kE4M3, true, true, 6);
      const OperandBytes first = run_on_cuda(product.spec, product.operands, remembering);
      for (int repetition = 0; repetition < 3; ++repetition) {
        EXPECT_TRUE(run_on_cuda(product.spec, product.operands, remembering) == first)
            << product.name;
      }
    }
  }
}

TEST_F(ScaledLinearCudaTest, RefusesF32Results) {
  for (const char* const op : {"scaled_linear", "scaled_linear_dgrad"}) {
    Case product = forward_case(op, {16, 16, 16}, 128, kE4M3, kE4M3, false, true, 7);
    product.spec.operands.back().dtype = DType::kF32;
    EXPECT_THROW(make_cuda_kernel(product.spec, context()), InternalError);
  }
}

}  // namespace
}  // namespace braid
