#include "hugging_face/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

/// The definition: sign, 5 bits of exponent with bias 15, 10 bits of mantissa.
double half_by_definition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? INFINITY
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(HalfToFloat, IsExactForEveryHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    const bool is_nan = (half & 0x7C00) == 0x7C00 && (half & 0x3FF) != 0;
    EXPECT_EQ(std::signbit(value), (half & 0x8000) != 0) << bits;
    if (is_nan) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, half_by_definition(half)) << bits;
    }
  }
}

TEST(Widen, TakesBytesThatAreNotAligned) {
  std::vector<std::byte> bytes(1 + 3 * sizeof(BFloat16));
  for (size_t i = 0; i < 3; ++i) {
    const BFloat16 value(static_cast<float>(i) * 0.5F);
    std::memcpy(bytes.data() + 1 + i * sizeof(value), &value, sizeof(value));
  }
  std::vector<float> values(3);
  widen(DType::kBF16, std::span(bytes).subspan(1), values);
  EXPECT_EQ(values, (std::vector<float>{0.0F, 0.5F, 1.0F}));
  EXPECT_THROW(widen(DType::kBF16, bytes, values), InternalError);
  EXPECT_THROW(widen(DType::kU8, std::span(bytes).first(3), values), InternalError);
}

}  // namespace
}  // namespace braid
