#include "backends/cpu/kernels/vector_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Distance in units in the last place of the float nearest to `exact`; denormals count in their
/// own unit.
double ulps_off(float value, double exact) {
  const auto nearest = static_cast<float>(exact);
  if (std::isnan(exact) || std::isinf(nearest)) {
    const bool same = std::isnan(exact) ? std::isnan(value) : value == nearest;
    // Half a unit may lie between a rounding to infinity and the largest float.
    const bool at_limit = std::isinf(nearest) && std::abs(value) > 3.4028e38f;
    return same ? 0 : at_limit ? 1 : 1e9;
  }
  const float magnitude = std::abs(nearest);
  const double unit = std::nextafter(magnitude, kInfinity) - magnitude;
  return std::isinf(unit) ? std::abs(value - exact) / 0x1.0p104
                          : std::abs(static_cast<double>(value) - exact) / unit;
}

/// The largest distance over bit patterns of all kinds of floats: both signs, denormals,
/// infinities, NaN.
double worst_ulps(const std::function<float(float)>& function,
                  const std::function<double(double)>& exact) {
  double worst = 0;
  constexpr uint64_t kStride = 4001;  // about a million samples
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kStride) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    worst = std::max(worst, ulps_off(function(x), exact(static_cast<double>(x))));
  }
  // Most bit patterns are tiny or huge: sample the range in which something happens densely.
  for (float x = -110.0f; x < 110.0f; x += 1.0f / 4096) {
    worst = std::max(worst, ulps_off(function(x), exact(static_cast<double>(x))));
  }
  return worst;
}

double exact_sigmoid(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

TEST(VectorMath, ExpIsWithinTwoUlps) {
  EXPECT_LE(
      worst_ulps([](float x) { return vector_math::exp(x); }, [](double x) { return std::exp(x); }),
      2.0);
}

TEST(VectorMath, TanhIsWithinTwoUlps) {
  EXPECT_LE(worst_ulps([](float x) { return vector_math::tanh(x); },
                       [](double x) { return std::tanh(x); }),
            2.0);
}

// One exponential, one sum and one quotient: their errors add.
TEST(VectorMath, SigmoidIsWithinThreeUlps) {
  EXPECT_LE(worst_ulps([](float x) { return vector_math::sigmoid(x); }, exact_sigmoid), 3.0);
}

TEST(VectorMath, KeepsSpecialValues) {
  EXPECT_EQ(vector_math::exp(0.0f), 1.0f);
  EXPECT_EQ(vector_math::exp(-kInfinity), 0.0f);
  EXPECT_EQ(vector_math::exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(vector_math::exp(kNan)));
  EXPECT_EQ(vector_math::tanh(kInfinity), 1.0f);
  EXPECT_EQ(vector_math::tanh(-kInfinity), -1.0f);
  EXPECT_TRUE(std::signbit(vector_math::tanh(-0.0f)));
  EXPECT_TRUE(std::isnan(vector_math::tanh(kNan)));
  EXPECT_EQ(vector_math::sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(vector_math::sigmoid(kInfinity), 1.0f);
  EXPECT_EQ(vector_math::sigmoid(0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(vector_math::sigmoid(kNan)));
}

TEST(VectorMath, DoubleUsesTheFunctionsOfStd) {
  for (const double x : {-700.0, -1.5, 0.0, 0.3, 40.0}) {
    EXPECT_EQ(vector_math::exp(x), std::exp(x));
    EXPECT_EQ(vector_math::tanh(x), std::tanh(x));
    EXPECT_NEAR(vector_math::sigmoid(x), exact_sigmoid(x), 4e-16);
  }
}

}  // namespace
}  // namespace braid
