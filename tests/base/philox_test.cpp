#include "base/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>

namespace braid {
namespace {

// Known answers published with the reference implementation (Random123, kat_vectors, philox4x32
// 10).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, NormalsHaveTheMomentsOfANormal) {
  constexpr int kCount = 100000;
  std::array<double, 5> moments{};
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = philox_normal(42, i);
    for (int power = 1; power <= 4; ++power) {
      moments[static_cast<size_t>(power)] += std::pow(x, power) / kCount;
    }
  }
  // 5 standard errors of each moment: sqrt(var(x^p) / n) with var = 1, 2, 15, 96.
  EXPECT_NEAR(moments[1], 0.0, 5 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(moments[2], 1.0, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(moments[3], 0.0, 5 * std::sqrt(15.0 / kCount));
  EXPECT_NEAR(moments[4], 3.0, 5 * std::sqrt(96.0 / kCount));
}

TEST(Philox, APairIsItsTwoNormals) {
  for (const uint64_t pair : {uint64_t{0}, uint64_t{1}, uint64_t{12345}, uint64_t{1} << 40}) {
    const auto [even, odd] = philox_normal_pair(7, pair);
    EXPECT_EQ(even, philox_normal(7, 2 * pair));
    EXPECT_EQ(odd, philox_normal(7, 2 * pair + 1));
  }
}

// Initial weights of published runs follow from these: Box-Muller written out once more.
TEST(Philox, NormalsAreBoxMullerOverTheWords) {
  const auto uniform = [](uint32_t high, uint32_t low) {
    return (static_cast<double>(((uint64_t{high} << 32) | low) >> 11) + 1.0) * 0x1p-53;
  };
  for (uint32_t index = 0; index < 2000; ++index) {
    const auto words = philox4x32({index / 2, 0, 0, 0}, {42, 0});
    const double radius = std::sqrt(-2.0 * std::log(uniform(words[0], words[1])));
    const double angle = 2.0 * std::numbers::pi * uniform(words[2], words[3]);
    const double expected = radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
    EXPECT_NEAR(philox_normal(42, index), expected, 1e-15 * std::abs(expected));
  }
}

// Published test vectors of 64-bit FNV-1a.
TEST(StableHash, GivesThePublishedAnswers) {
  EXPECT_EQ(stable_hash("", 0), 0xcbf29ce484222325ull);
  EXPECT_EQ(stable_hash("a", 1), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(stable_hash("foobar", 6), 0x85944171f73967e8ull);
}

}  // namespace
}  // namespace braid
