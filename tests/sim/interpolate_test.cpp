#include "sim/interpolate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/errors.h"

namespace braid {
namespace {

/// Points of a model that says 1000 ns and a byte per ns.
double model_ns(double size) {
  return 1000 + size;
}

SizeCurve curve_of(const std::vector<std::pair<double, double>>& sizes_and_ns) {
  std::vector<SizePoint> points;
  for (const auto& [size, ns] : sizes_and_ns) {
    points.push_back({.size = size, .ns = ns, .model_ns = model_ns(size)});
  }
  return SizeCurve(points);
}

double ns_of(const SizeCurve& curve, double size) {
  return curve.ns(size, model_ns(size));
}

TEST(SizeCurve, IsExactAtPointsAndStraightBetween) {
  const SizeCurve curve = curve_of({{400, 5000}, {100, 2000}, {1000, 6000}});
  EXPECT_DOUBLE_EQ(ns_of(curve, 100), 2000);
  EXPECT_DOUBLE_EQ(ns_of(curve, 400), 5000);
  EXPECT_DOUBLE_EQ(ns_of(curve, 1000), 6000);
  EXPECT_DOUBLE_EQ(ns_of(curve, 250), 3500);
}

TEST(SizeCurve, BeyondItsPointsTheModelIsAsFarOffAsAtTheNearest) {
  const SizeCurve curve = curve_of({{1000, 3000}, {9000, 8000}});
  EXPECT_DOUBLE_EQ(ns_of(curve, 500), 1.5 * 1500);
  EXPECT_DOUBLE_EQ(ns_of(curve, 0), 1.5 * 1000);
  EXPECT_DOUBLE_EQ(ns_of(curve, 19000), 0.8 * 20000);
  EXPECT_TRUE(curve.covers(1000));
  EXPECT_TRUE(curve.covers(9000));
  EXPECT_FALSE(curve.covers(999));
  EXPECT_FALSE(curve.covers(9001));
}

TEST(SizeCurve, OnePointScalesTheModel) {
  const SizeCurve curve = curve_of({{1000, 3000}});
  EXPECT_DOUBLE_EQ(ns_of(curve, 1000), 3000);
  EXPECT_DOUBLE_EQ(ns_of(curve, 3000), 6000);
  EXPECT_THROW(SizeCurve(std::vector<SizePoint>()), InternalError);
}

TEST(SizeCurve, NeverFalls) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<double, double>> points;
    for (int i = 0; i < 12; ++i) {
      const double size = std::uniform_real_distribution<double>(1, 1e6)(random);
      points.push_back(
          {size, (100 + size) * std::uniform_real_distribution<double>(0.5, 2)(random)});
    }
    const SizeCurve curve = curve_of(points);
    double last = 0;
    for (double size = 0; size < 2e6; size += 1e4) {
      EXPECT_GE(ns_of(curve, size), last) << "round " << round << ", size " << size;
      last = ns_of(curve, size);
    }
  }
}

TEST(SizeCurve, PointsOfOneSizeAreAveragedAndFallsLevelled) {
  const SizeCurve twice = curve_of({{100, 1000}, {100, 3000}, {200, 5000}});
  EXPECT_DOUBLE_EQ(ns_of(twice, 100), 2000);
  const SizeCurve falls = curve_of({{100, 3000}, {200, 1000}, {300, 5000}});
  EXPECT_DOUBLE_EQ(ns_of(falls, 100), 2000);
  EXPECT_DOUBLE_EQ(ns_of(falls, 200), 2000);
  EXPECT_DOUBLE_EQ(ns_of(falls, 300), 5000);
}

TEST(ScatteredRatios, IsExactAtPointsAndBetweenTheExtremes) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> place(0, 16);
  std::vector<ScatteredPoint> points;
  for (int i = 0; i < 40; ++i) {
    points.push_back({{place(random), place(random), place(random)}, std::log(0.5 + i * 0.05)});
  }
  const ScatteredRatios ratios(points);
  for (const ScatteredPoint& point : points) {
    EXPECT_NEAR(ratios.ratio(point.at), std::exp(point.log_ratio), 1e-9);
    EXPECT_TRUE(ratios.covers(point.at));
  }
  for (int i = 0; i < 200; ++i) {
    const double ratio = ratios.ratio({place(random), place(random), place(random)});
    EXPECT_GE(ratio, 0.5 - 1e-9);
    EXPECT_LE(ratio, 0.5 + 39 * 0.05 + 1e-9);
  }
  EXPECT_FALSE(ratios.covers({20, 5, 5}));
}

TEST(ScatteredRatios, IsMonotoneFromOnePointToAnother) {
  const ScatteredRatios ratios(
      std::vector<ScatteredPoint>{{{10, 10, 10}, 0.0}, {{14, 10, 10}, 1.0}});
  double last = 0;
  for (double x = 10; x <= 14; x += 0.05) {
    const double now = ratios.ratio({x, 10, 10});
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_NEAR(ratios.ratio({12, 10, 10}), std::exp(0.5), 1e-9);
}

TEST(ScatteredRatios, PointsOfOnePlaceAreAveraged) {
  const ScatteredRatios ratios(std::vector<ScatteredPoint>{{{1, 1, 1}, 0.0}, {{1, 1, 1}, 2.0}});
  EXPECT_NEAR(ratios.ratio({1, 1, 1}), std::exp(1.0), 1e-9);
  EXPECT_NEAR(ratios.ratio({5, 1, 1}), std::exp(1.0), 1e-9);
}

}  // namespace
}  // namespace braid
