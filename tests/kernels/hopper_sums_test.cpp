#include "backends/cpu/kernels/hopper_sums.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "support/hopper_reference.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Elements of one format.
struct Numbers {
  std::vector<double> values;
  std::vector<SplitNumber> split;
  int least_exponent = 0;

  template <class Element>
  void add(Element element) {
    values.push_back(static_cast<double>(static_cast<float>(element)));
    split.push_back(split_number(element));
  }
};

template <class Element>
Numbers numbers(const std::vector<double>& values) {
  Numbers made;
  made.least_exponent = least_exponent_of(dtype_of<Element>());
  for (const double value : values) {
    made.add(Element(static_cast<float>(value)));
  }
  return made;
}

float reference_sum(const TensorCore& core, const Numbers& a, const Numbers& b, float c = 0) {
  return tensor_core_reference(core, {a.values, a.least_exponent}, {b.values, b.least_exponent}, c);
}

float sum_of(const TensorCore& core, const Numbers& a, const Numbers& b, float c = 0) {
  return tensor_core_sum(core, a.split.data(), b.split.data(), static_cast<int64_t>(a.split.size()),
                         c);
}

float e4m3_sum(const std::vector<double>& a, const std::vector<double>& b, float c = 0) {
  return sum_of(kHopperFp8, numbers<Float8E4M3>(a), numbers<Float8E4M3>(b), c);
}

TEST(HopperSums, ExactWhereNothingIsBelowTheLastBit) {
  EXPECT_EQ(e4m3_sum(std::vector<double>(32, 1.0), std::vector<double>(32, 1.0)), 32.0F);
  EXPECT_EQ(e4m3_sum({1.5, -2, 0}, {2, 0.25, 448}, 10), 12.5F);
  EXPECT_EQ(e4m3_sum({0x1p-9}, {0x1p-9}), 0x1p-18F);
  EXPECT_EQ(e4m3_sum({}, {}), 0.0F);
  EXPECT_EQ(e4m3_sum({1, 1}, {3, -3}), 0.0F);
}

// 448 x 448 has the exponent 16, so terms are multiples of 8; the sum has the exponent 17, so it is
// a multiple of 16.
TEST(HopperSums, TermsAndResultAreTruncatedTowardZero) {
  EXPECT_EQ(e4m3_sum({448, 1}, {448, 7}), 200704.0F);
  EXPECT_EQ(e4m3_sum({448, 1}, {448, 8}), 200704.0F);
  EXPECT_EQ(e4m3_sum({448, 1}, {448, 15}), 200704.0F);
  EXPECT_EQ(e4m3_sum({448, 1, 1}, {448, 8, 8}), 200720.0F);
  EXPECT_EQ(e4m3_sum({448, 1}, {448, -7}), 200704.0F);
  EXPECT_EQ(e4m3_sum({448, 1}, {448, -8}), 200688.0F);
  EXPECT_EQ(e4m3_sum({-448, 1}, {448, 8}), -200688.0F);
}

TEST(HopperSums, TheAccumulatorIsATermLikeOthers) {
  EXPECT_EQ(e4m3_sum({1}, {1}, 0x1p14F), 0x1p14F);
  EXPECT_EQ(e4m3_sum({1}, {2}, 0x1p14F), 0x1p14F + 2);
  EXPECT_EQ(e4m3_sum({448}, {448}, 7.0F), 200704.0F);
  // 32 ones, and a 33rd, which meets the sum of the first in the next instruction.
  std::vector<double> ones(33, 1.0);
  std::vector<double> others(33, 0.0);
  others[0] = 448;
  others[32] = 0x1p-5;
  EXPECT_EQ(e4m3_sum(ones, others), 448.0F + 0x1p-5F);
  others[32] = 0x1p-6;
  EXPECT_EQ(e4m3_sum(ones, others), 448.0F);
}

// 1.5 x 1.5 = 2.25 counts as 2.25 x 2^0: terms are multiples of 2^-13, the sum one of 2^-12.
TEST(HopperSums, ProductsAreNotNormalised) {
  EXPECT_EQ(e4m3_sum({1.5, 0x1p-6}, {1.5, 0x1p-7}), 2.25F);
  EXPECT_EQ(e4m3_sum({1.5, 0x1p-6, 0x1p-6}, {1.5, 0x1p-7, 0x1p-7}), 2.25F + 0x1p-12F);
}

// 2^-9 is 2^-3 x 2^-6, so its product with 256 counts as 2^-3 x 2^2.
TEST(HopperSums, SubnormalNumbersHaveTheLeastExponent) {
  EXPECT_EQ(e4m3_sum({0x1p-9, 0x1p-6}, {256, 0x1p-6}), 0.5F);
  EXPECT_EQ(e4m3_sum({0x1p-9, 0x1p-6}, {256, 0x1p-5}), 0.5F + 0x1p-11F);
  EXPECT_EQ(e4m3_sum({0x1p-6, 0x1p-6}, {32, 0x1p-6}), 0.5F + 0x1p-12F);
}

TEST(HopperSums, Bf16KeepsMoreBits) {
  const auto one = numbers<BFloat16>({1});
  EXPECT_EQ(sum_of(kHopperBf16, one, one, 0x1p14F), 0x1p14F + 1);
  EXPECT_EQ(sum_of(kHopperBf16, one, one, 0x1p24F), 0x1p24F);
  EXPECT_EQ(sum_of(kHopperBf16, one, one, -0x1p24F), -0x1p24F + 1);
}

TEST(HopperSums, NanAndInfinity) {
  constexpr uint32_t kNan = 0x7FFF'FFFF;
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  EXPECT_EQ(bits(e4m3_sum({1, NAN}, {1, 1})), kNan);
  EXPECT_EQ(bits(e4m3_sum({1}, {1}, NAN)), kNan);
  EXPECT_EQ(e4m3_sum({1}, {-1}, kInfinity), kInfinity);
  // E5M2 has infinities; conversion saturates, so they are made from bits.
  Numbers a;
  a.add(Float8E5M2::from_bits(0x7C));
  a.add(Float8E5M2::from_bits(0xFC));
  const auto with = [&](double first, double second) {
    return sum_of(kHopperFp8, a, numbers<Float8E4M3>({first, second}));
  };
  EXPECT_EQ(with(1, -1), kInfinity);
  EXPECT_EQ(with(-2, 448), -kInfinity);
  EXPECT_EQ(bits(with(1, 1)), kNan);
  EXPECT_EQ(bits(with(1, 0)), kNan);
}

/// Elements of all magnitudes, or near 1, with cancellation and zeros.
template <class Element>
Numbers random_numbers(size_t count, TestRandom& random) {
  std::vector<double> values;
  const bool is_wide = random.below(2) == 0;
  for (size_t i = 0; i < count; ++i) {
    const double exponent = is_wide ? random.uniform(-17, 9) : random.uniform(-1, 1);
    const double value = random.below(8) == 0 ? 0.0 : std::exp2(exponent);
    values.push_back(random.below(2) == 0 ? value : -value);
    if (i > 0 && random.below(4) == 0) {
      values.back() = -values[i - 1];
    }
  }
  return numbers<Element>(values);
}

template <class First, class Second>
void expect_reference(const TensorCore& core) {
  TestRandom random(7);
  for (int repetition = 0; repetition < 2000; ++repetition) {
    const auto count = static_cast<size_t>(1 + random.below(100));
    const auto a = random_numbers<First>(count, random);
    const auto b = random_numbers<Second>(count, random);
    const float c = random.below(2) == 0
                        ? 0.0F
                        : static_cast<float>(random.uniform(-1, 1) * std::exp2(random.below(20)));
    ASSERT_EQ(sum_of(core, a, b, c), reference_sum(core, a, b, c)) << repetition;
  }
}

TEST(HopperSums, EqualTheirDefinition) {
  expect_reference<Float8E4M3, Float8E4M3>(kHopperFp8);
  expect_reference<Float8E4M3, Float8E5M2>(kHopperFp8);
  expect_reference<Float8E5M2, Float8E4M3>(kHopperFp8);
  expect_reference<BFloat16, BFloat16>(kHopperBf16);
}

TEST(HopperSums, AllElementsTimesAllElements) {
  for (int i = 0; i < 256; ++i) {
    for (int j = 0; j < 256; ++j) {
      Numbers a{.least_exponent = -6};
      Numbers b{.least_exponent = -14};
      a.add(Float8E4M3::from_bits(static_cast<uint8_t>(i)));
      b.add(Float8E5M2::from_bits(static_cast<uint8_t>(j)));
      const double exact = a.values[0] * b.values[0];
      const float found = sum_of(kHopperFp8, a, b);
      if (std::isnan(exact)) {
        ASSERT_EQ(std::bit_cast<uint32_t>(found), 0x7FFF'FFFFu);
      } else {
        ASSERT_EQ(static_cast<double>(found), exact) << i << " " << j;
      }
    }
  }
}

/// Standard normal.
double normal(TestRandom& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform(0, 1))) *
         std::cos(6.283185307 * random.uniform(0, 1));
}

/// Errors of sums of random E4M3 products: accumulators begin anew after `run` products.
struct Errors {
  double of_norm = 0;  ///< root mean square, relative to that of the sums
  double largest = 0;  ///< relative to the root mean square of the sums
};

Errors errors_of(size_t depth, size_t run, int count, bool positive = false) {
  TestRandom random(3);
  double signal = 0;
  double noise = 0;
  double largest = 0;
  for (int repetition = 0; repetition < count; ++repetition) {
    std::vector<double> a(depth);
    std::vector<double> b(depth);
    for (size_t i = 0; i < depth; ++i) {
      a[i] = 64 * (positive ? std::abs(normal(random)) : normal(random));
      b[i] = 64 * (positive ? std::abs(normal(random)) : normal(random));
    }
    const auto first = numbers<Float8E4M3>(a);
    const auto second = numbers<Float8E4M3>(b);
    double exact = 0;
    float sum = 0;
    for (size_t i = 0; i < depth; ++i) {
      exact += first.values[i] * second.values[i];
    }
    for (size_t i = 0; i < depth; i += run) {
      sum += tensor_core_sum(kHopperFp8, first.split.data() + i, second.split.data() + i,
                             static_cast<int64_t>(std::min(run, depth - i)));
    }
    const double error = std::abs(static_cast<double>(sum) - exact);
    signal += exact * exact;
    noise += error * error;
    largest = std::max(largest, error);
  }
  return {.of_norm = std::sqrt(noise / signal), .largest = largest / std::sqrt(signal / count)};
}

// Measured on an H200 with normal numbers, relative to the norm of the result: 1.3e-4 at depth 640
// and at 16384 with promotion every 128 products, 4e-4 at depth 640 without.
TEST(HopperSums, ErrorsAreThoseOfAnH200) {
  EXPECT_NEAR(errors_of(640, 128, 1000).of_norm, 1.3e-4, 0.2e-4);
  EXPECT_NEAR(errors_of(640, 640, 1000).of_norm, 4e-4, 0.6e-4);
  EXPECT_NEAR(errors_of(16384, 128, 20).of_norm, 1.3e-4, 0.3e-4);
}

// The longer the accumulator's sum, the more it loses of each term; if all terms have one sign,
// the losses add up.
TEST(HopperSums, LongSumsLosePercents) {
  const double promoted = errors_of(4096, 128, 50, /*positive=*/true).largest;
  const double fast = errors_of(4096, 4096, 50, /*positive=*/true).largest;
  EXPECT_LT(promoted, 0.001);
  EXPECT_GT(fast, 0.05);
  EXPECT_LT(fast, 0.08);
}

}  // namespace
}  // namespace braid
