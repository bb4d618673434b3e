#include "train/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace braid {
namespace {

OptimizerConfig config_of(const char* schedule) {
  OptimizerConfig config;
  config.learning_rate = 1e-3;
  config.min_learning_rate = 1e-4;
  config.schedule = schedule;
  config.warmup_steps = 10;
  return config;
}

constexpr int64_t kSteps = 110;

TEST(Warmup, RisesLinearlyToTheFullRateAtItsLastStep) {
  for (const char* schedule : {"cosine", "wsd", "constant"}) {
    OptimizerConfig config = config_of(schedule);
    config.decay_steps = config.schedule == "wsd" ? 20 : 0;
    EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 1), 1e-4) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 5), 5e-4) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 10), 1e-3) << schedule;
  }
}

TEST(Warmup, OfNoStepsStartsWithTheFullRate) {
  OptimizerConfig config = config_of("constant");
  config.warmup_steps = 0;
  EXPECT_EQ(learning_rate_at(config, kSteps, 1), 1e-3);
}

TEST(Constant, StaysAtTheFullRate) {
  for (const int64_t step : {11, 50, 110}) {
    EXPECT_EQ(learning_rate_at(config_of("constant"), kSteps, step), 1e-3);
  }
}

TEST(Cosine, IsHalfwayInTheMiddleAndAtTheMinimumAtTheEnd) {
  const OptimizerConfig config = config_of("cosine");
  EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 60), (1e-3 + 1e-4) / 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 35),
                   1e-4 + 9e-4 * 0.5 * (1 + std::sqrt(0.5)));  // a quarter of the way
  EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 110), 1e-4);
}

TEST(Cosine, WithDecayStepsEndsThereAndStaysAtTheMinimum) {
  OptimizerConfig config = config_of("cosine");
  config.decay_steps = 60;
  EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 35), (1e-3 + 1e-4) / 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 60), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 100), 1e-4);
}

TEST(Cosine, NeverRisesAfterTheWarmup) {
  for (int64_t step = 10; step < kSteps; ++step) {
    EXPECT_GE(learning_rate_at(config_of("cosine"), kSteps, step),
              learning_rate_at(config_of("cosine"), kSteps, step + 1));
  }
}

TEST(Wsd, IsStableUntilTheLastDecaySteps) {
  OptimizerConfig config = config_of("wsd");
  config.decay_steps = 20;
  EXPECT_EQ(learning_rate_at(config, kSteps, 11), 1e-3);
  EXPECT_EQ(learning_rate_at(config, kSteps, 90), 1e-3);
  EXPECT_LT(learning_rate_at(config, kSteps, 91), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, kSteps, 110), 1e-4);
}

TEST(Wsd, DecaysInItsShape) {
  OptimizerConfig config = config_of("wsd");
  config.decay_steps = 20;
  const auto quarter = [&](const char* shape) {
    config.decay_shape = shape;
    return learning_rate_at(config, kSteps, 95);
  };
  EXPECT_DOUBLE_EQ(quarter("linear"), 1e-4 + 9e-4 * 0.75);
  EXPECT_DOUBLE_EQ(quarter("cosine"), 1e-4 + 9e-4 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(quarter("one_minus_sqrt"), 1e-4 + 9e-4 * 0.5);
}

}  // namespace
}  // namespace braid
