#include "train/spike_detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace braid {
namespace {

/// After steps with losses and norms around 3 and 1.
SpikeDetector after_steps(int count) {
  SpikeDetector detector;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(-0.2, 0.2);
  for (int i = 0; i < count; ++i) {
    EXPECT_FALSE(detector.add(3 + noise(random), 1 + noise(random)).is_spike()) << "step " << i;
  }
  return detector;
}

TEST(SpikeDetector, FindsAJumpOfLossOrNorm) {
  EXPECT_TRUE(after_steps(1000).add(4, 1).is_spike());
  EXPECT_TRUE(after_steps(1000).add(3, 2).is_spike());
  EXPECT_FALSE(after_steps(1000).add(3.2, 1.2).is_spike());
  EXPECT_FALSE(after_steps(1000).add(0.1, 0.1).is_spike());
}

TEST(SpikeDetector, NumbersThatAreNoneAreAlwaysSpikes) {
  SpikeDetector detector;
  EXPECT_TRUE(detector.add(std::nan(""), 1).is_spike());
  EXPECT_TRUE(detector.add(3, std::numeric_limits<double>::infinity()).is_spike());
  EXPECT_FALSE(detector.add(3, 1).is_spike());
}

TEST(SpikeDetector, NeedsSixteenSteps) {
  EXPECT_FALSE(after_steps(15).add(100, 100).is_spike());
  EXPECT_TRUE(after_steps(16).add(100, 100).is_spike());
}

TEST(SpikeDetector, ALossThatHardlyMovesHasNoSpikes) {
  SpikeDetector detector;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(detector.add(2.0, 1.0).is_spike());
  }
  EXPECT_FALSE(detector.add(2.15, 1.05).is_spike());
  EXPECT_TRUE(detector.add(2.2, 1.0).is_spike());
}

// A run that settles at a higher loss is compared with that.
TEST(SpikeDetector, GetsUsedToALevel) {
  SpikeDetector detector = after_steps(100);
  EXPECT_TRUE(detector.add(10, 1).is_spike());
  for (int i = 0; i < 32; ++i) {
    detector.add(10, 1);
  }
  EXPECT_FALSE(detector.add(10, 1).is_spike());
}

}  // namespace
}  // namespace braid
