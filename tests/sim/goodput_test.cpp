#include "sim/goodput.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace braid {
namespace {

/// A mean of 1,000 seconds between failures of the machine.
FailureModel small_machine() {
  return {.device_hours = 10, .devices = 36, .save_s = 12, .restart_s = 70, .repair_s = 2500};
}

/// Seconds of `intervals` intervals by drawing failures one by one.
double drawn_seconds(const FailureModel& model, double interval_s, int intervals) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> failure(1.0 / model.mean_s());
  double seconds = 0;
  const auto fails_before = [&](double length) {
    const double at = failure(random);
    seconds += std::min(at, length);
    return at < length;
  };
  for (int i = 0; i < intervals; ++i) {
    while (fails_before(interval_s + model.save_s)) {
      while (fails_before(model.restart_s)) {
      }
    }
  }
  return seconds;
}

TEST(Goodput, IsThatOfFailuresDrawnOneByOne) {
  const FailureModel model = small_machine();
  EXPECT_EQ(model.mean_s(), 1000);
  constexpr int kIntervals = 100000;
  for (const double interval_s : {60.0, 400.0}) {
    const double seconds = drawn_seconds(model, interval_s, kIntervals);
    const Goodput goodput = goodput_at(model, interval_s, model.restart_s);
    EXPECT_NEAR(goodput.useful, interval_s * kIntervals / seconds, 0.004) << interval_s;
    EXPECT_NEAR(goodput.saves, model.save_s * kIntervals / seconds, 0.004) << interval_s;
    EXPECT_NEAR(goodput.useful + goodput.saves + goodput.failures, 1.0, 1e-12);
    EXPECT_GT(goodput.failures, 0.05);
  }
}

TEST(Goodput, NoIntervalIsBetterThanTheBest) {
  for (const double save_s : {0.01, 12.0, 900.0}) {
    FailureModel model = small_machine();
    model.save_s = save_s;
    const double best = best_interval_s(model);
    const double useful = goodput_at(model, best, model.restart_s).useful;
    for (const double other : {0.98, 1.02}) {
      EXPECT_GT(useful, goodput_at(model, other * best, model.restart_s).useful) << save_s;
    }
  }
  // Short saves: the root of twice save times mean (Young, 1974).
  FailureModel model = small_machine();
  model.save_s = 0.01;
  EXPECT_NEAR(best_interval_s(model), std::sqrt(2 * 0.01 * 1000), 0.02);
}

TEST(Goodput, SparesServeAllButAShareOfFailures) {
  FailureModel model = small_machine();   // 2.5 nodes in repair on average
  EXPECT_EQ(spare_nodes(model, 0.5), 3);  // P(at most 2) = 0.544
  EXPECT_EQ(spare_nodes(model, 0.54), 3);
  EXPECT_EQ(spare_nodes(model, 0.55), 4);
  EXPECT_EQ(spare_nodes(model, 0.99), 8);  // P(at most 6) = 0.986, at most 7: 0.996
  model.repair_s = 5e6;  // 5,000 nodes, whose chances one by one begin below the smallest double
  EXPECT_NEAR(static_cast<double>(spare_nodes(model, 0.99)), 5000 + 2.326 * std::sqrt(5000.0), 4);
  model.repair_s = 0;
  EXPECT_EQ(spare_nodes(model, 0.99), 1);
}

}  // namespace
}  // namespace braid
