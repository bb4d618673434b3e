#include "base/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace braid {
namespace {

/// The value of a bit pattern by the definition of the format.
double value_of(uint8_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7F) >> mantissa_bits;
  const int fraction = bits & ((1 << mantissa_bits) - 1);
  const double steps = exponent == 0 ? fraction : fraction + (1 << mantissa_bits);
  const double magnitude = std::ldexp(steps, std::max(exponent, 1) - bias - mantissa_bits);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

struct Format {
  int exponent_bits;
  int mantissa_bits;
  uint8_t largest;
};

template <class Element>
constexpr Format kFormat{};
template <>
constexpr Format kFormat<Float8E4M3>{4, 3, 0x7E};
template <>
constexpr Format kFormat<Float8E5M2>{5, 2, 0x7B};

template <class Element>
class Float8Test : public testing::Test {
 public:
  static double value(uint8_t bits) {
    return value_of(bits, kFormat<Element>.exponent_bits, kFormat<Element>.mantissa_bits);
  }

  /// The nearest number, by looking at all of them; among two the one with an even last bit.
  static uint8_t nearest(float x) {
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    int best = 0;
    for (int bits = 1; bits <= kFormat<Element>.largest; ++bits) {
      const double best_off = std::abs(std::abs(x) - value(static_cast<uint8_t>(best)));
      const double off = std::abs(std::abs(x) - value(static_cast<uint8_t>(bits)));
      if (off < best_off || (off == best_off && bits % 2 == 0)) {
        best = bits;
      }
    }
    return static_cast<uint8_t>(sign | best);
  }
};

using Formats = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8Test, Formats);

TYPED_TEST(Float8Test, HasTheValuesOfTheFormat) {
  for (int bits = 0; bits <= kFormat<TypeParam>.largest; ++bits) {
    for (const int sign : {0, 0x80}) {
      const auto pattern = static_cast<uint8_t>(bits | sign);
      const auto value = static_cast<float>(TypeParam::from_bits(pattern));
      EXPECT_EQ(value, this->value(pattern)) << int{pattern};
      EXPECT_EQ(std::signbit(value), sign != 0);
      EXPECT_EQ(TypeParam(value).bits, pattern);
    }
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam::from_bits(0x7F))));
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam::from_bits(0xFF))));
  EXPECT_EQ(TypeParam::largest(), this->value(kFormat<TypeParam>.largest));
}

TYPED_TEST(Float8Test, RoundsToTheNearest) {
  std::mt19937 random(1);
  std::vector<float> values;
  for (int i = 0; i < 4000; ++i) {
    const auto exponent = static_cast<int>(random() % 44) - 24;
    values.push_back(std::ldexp(static_cast<float>(random() % 0x1000000) / 0x800000, exponent));
  }
  for (int bits = 0; bits < kFormat<TypeParam>.largest; ++bits) {  // ties, and beside them
    const auto tie = static_cast<float>(
        (this->value(static_cast<uint8_t>(bits)) + this->value(static_cast<uint8_t>(bits + 1))) /
        2);
    values.insert(values.end(), {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 1e9F)});
  }
  for (const float value : values) {
    EXPECT_EQ(TypeParam(value).bits, this->nearest(value)) << value;
    EXPECT_EQ(TypeParam(-value).bits, this->nearest(-value)) << -value;
  }
}

TYPED_TEST(Float8Test, SaturatesAndKeepsNaN) {
  constexpr uint8_t kLargest = kFormat<TypeParam>.largest;
  for (const float value :
       {TypeParam::largest() * 1.0625F, 1e30F, std::numeric_limits<float>::max(),
        std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(TypeParam(value).bits, kLargest);
    EXPECT_EQ(TypeParam(-value).bits, kLargest | 0x80);
  }
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::quiet_NaN()).bits & 0x7F, 0x7F);
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(TypeParam(-std::numeric_limits<float>::min()).bits, 0x80);
}

TEST(Float8, E5M2HasInfinity) {
  EXPECT_EQ(static_cast<float>(Float8E5M2::from_bits(0x7C)),
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(static_cast<float>(Float8E5M2::from_bits(0xFC)),
            -std::numeric_limits<float>::infinity());
}

int exponent_of(float magnitude, DType format) {
  return Fp8Scale::exponent_of(std::bit_cast<uint32_t>(magnitude),
                               Fp8Scale::largest_exponent(format));
}

TEST(Fp8Scale, IsTheLeastPowerOfTwoThatClipsNothing) {
  std::mt19937 random(2);
  for (const auto& [format, largest] :
       {std::pair{DType::kF8E4M3, 448.0}, std::pair{DType::kF8E5M2, 57344.0}}) {
    for (int i = 0; i < 20000; ++i) {
      const uint32_t bits = random() % 0x7F80'0000u;
      const double magnitude = std::bit_cast<float>(bits);
      const int exponent = exponent_of(std::bit_cast<float>(bits), format);
      EXPECT_LE(magnitude, largest * std::ldexp(1.0, exponent));
      if (exponent > Fp8Scale::kLeastExponent && bits != 0) {
        EXPECT_GT(magnitude, largest * std::ldexp(1.0, exponent - 1));
      }
    }
  }
  EXPECT_EQ(exponent_of(448.0F, DType::kF8E4M3), 0);
  EXPECT_EQ(exponent_of(std::nextafter(448.0F, 1e9F), DType::kF8E4M3), 1);
  EXPECT_EQ(exponent_of(57344.0F, DType::kF8E5M2), 0);
}

TEST(Fp8Scale, OfZerosAndOfWhatIsNotFinite) {
  EXPECT_EQ(exponent_of(0.0F, DType::kF8E4M3), 0);
  EXPECT_EQ(exponent_of(std::numeric_limits<float>::denorm_min(), DType::kF8E4M3),
            Fp8Scale::kLeastExponent);
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const int exponent = exponent_of(value, DType::kF8E4M3);
    EXPECT_EQ(exponent, Fp8Scale::kNotFinite);
    EXPECT_TRUE(std::isnan(Fp8Scale::to_float(exponent)));
    EXPECT_EQ(Fp8Scale::to_e8m0(exponent), 0xFF);
  }
}

TEST(Fp8Scale, HasAFloatAndAnE8M0) {
  for (int exponent = Fp8Scale::kLeastExponent; exponent <= 127; ++exponent) {
    EXPECT_EQ(Fp8Scale::to_float(exponent), std::ldexp(1.0F, exponent));
    EXPECT_EQ(Fp8Scale::from_e8m0(Fp8Scale::to_e8m0(exponent)), std::ldexp(1.0F, exponent));
  }
  EXPECT_TRUE(std::isnan(Fp8Scale::from_e8m0(0xFF)));
}

}  // namespace
}  // namespace braid
