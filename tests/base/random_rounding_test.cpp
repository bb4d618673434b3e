#include "base/random_rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float rounded(float value, uint32_t random) {
  const uint16_t bits = bf16_rounded_randomly(std::bit_cast<uint32_t>(value), random);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The words are those of "test", "abcd" and "Hello, world". The first two hashes are published with
// many implementations; the last is that of a byte-wise one which has 0xFAF6CDB3 for "Hello,
// world!" with seed 1234, also published.
TEST(Murmur3, HasThePublishedHashes) {
  EXPECT_EQ(murmur3({0x74736574u}, 0x9747B28Cu), 0x704B81DCu);
  EXPECT_EQ(murmur3({0x64636261u}, 0x9747B28Cu), 0xF0478627u);
  EXPECT_EQ(murmur3({0x6C6C6548u, 0x77202C6Fu, 0x646C726Fu}, 1234), 0x584D5953u);
}

// All 65,536 values of the random bits, once each.
TEST(RandomRounding, MeanIsTheFloat) {
  for (const float value : {1.0f + 0x1.8p-9f, -3.14159274f, 1e-30f, 0x1p-140f, 65535.99f}) {
    double sum = 0;
    const float below = rounded(value, 0);
    for (uint32_t random = 0; random < 65536; ++random) {
      const float result = rounded(value, random);
      sum += static_cast<double>(result);
      EXPECT_TRUE(result == below || std::abs(result) > std::abs(value)) << value;
    }
    EXPECT_EQ(sum / 65536, static_cast<double>(value)) << value;
  }
}

TEST(RandomRounding, KeepsBf16NumbersInfinityAndNan) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    for (const uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu, 0xFFFF'FFFFu}) {
      const float result = rounded(value, random);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(result)) << bits;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(result), bits << 16);
      }
    }
  }
  // NaNs whose payload is in the low bits alone.
  EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(0x7F80'0001u), 0)));
  EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(0xFFFF'FFFFu), 0xFFFF)));
  EXPECT_EQ(rounded(std::numeric_limits<float>::max(), 0xFFFF), kInfinity);  // as to nearest
}

}  // namespace
}  // namespace braid
