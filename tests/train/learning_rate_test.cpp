#include "train/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace braid {
namespace {

constexpr int64_t kSteps = 110;

LearningRateSpec rate_of(RateSchedule schedule) {
  return {.schedule = schedule,
          .highest = 1e-3,
          .lowest = 1e-4,
          .warmup_steps = 10,
          .num_steps = kSteps};
}

TEST(Warmup, RisesLinearlyToTheFullRateAtItsLastStep) {
  for (const RateSchedule schedule :
       {RateSchedule::kCosine, RateSchedule::kWsd, RateSchedule::kConstant}) {
    LearningRateSpec rate = rate_of(schedule);
    rate.decay_steps = schedule == RateSchedule::kWsd ? 20 : 0;
    EXPECT_DOUBLE_EQ(learning_rate_at(rate, 1), 1e-4) << choice_name(schedule);
    EXPECT_DOUBLE_EQ(learning_rate_at(rate, 5), 5e-4) << choice_name(schedule);
    EXPECT_DOUBLE_EQ(learning_rate_at(rate, 10), 1e-3) << choice_name(schedule);
  }
}

TEST(Warmup, OfNoStepsStartsWithTheFullRate) {
  LearningRateSpec rate = rate_of(RateSchedule::kConstant);
  rate.warmup_steps = 0;
  EXPECT_EQ(learning_rate_at(rate, 1), 1e-3);
}

TEST(Constant, StaysAtTheFullRate) {
  for (const int64_t step : {11, 50, 110}) {
    EXPECT_EQ(learning_rate_at(rate_of(RateSchedule::kConstant), step), 1e-3);
  }
}

TEST(Cosine, IsHalfwayInTheMiddleAndAtTheMinimumAtTheEnd) {
  const LearningRateSpec rate = rate_of(RateSchedule::kCosine);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 60), (1e-3 + 1e-4) / 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 35),
                   1e-4 + 9e-4 * 0.5 * (1 + std::sqrt(0.5)));  // a quarter of the way
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 110), 1e-4);
}

TEST(Cosine, WithDecayStepsEndsThereAndStaysAtTheMinimum) {
  LearningRateSpec rate = rate_of(RateSchedule::kCosine);
  rate.decay_steps = 60;
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 35), (1e-3 + 1e-4) / 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 60), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 100), 1e-4);
}

TEST(Cosine, NeverRisesAfterTheWarmup) {
  for (int64_t step = 10; step < kSteps; ++step) {
    EXPECT_GE(learning_rate_at(rate_of(RateSchedule::kCosine), step),
              learning_rate_at(rate_of(RateSchedule::kCosine), step + 1));
  }
}

TEST(Linear, IsALineToTheMinimum) {
  LearningRateSpec rate = rate_of(RateSchedule::kLinear);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 35), 1e-4 + 9e-4 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 110), 1e-4);
  rate.decay_steps = 60;
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 35), 1e-4 + 9e-4 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 100), 1e-4);
}

TEST(Polynomial, IsAPowerOfTheLine) {
  LearningRateSpec rate = rate_of(RateSchedule::kPolynomial);
  rate.power = 3;
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 60), 1e-4 + 9e-4 * 0.125);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 110), 1e-4);
}

TEST(InverseSqrt, HalvesInFourTimesTheStepsDownToTheMinimum) {
  LearningRateSpec rate = rate_of(RateSchedule::kInverseSqrt);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 40), 1e-3 / 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 90), 1e-3 / 3);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 4000), 1e-4);
  rate.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 1), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 4), 1e-3 / 2);
}

TEST(Wsd, IsStableUntilTheLastDecaySteps) {
  LearningRateSpec rate = rate_of(RateSchedule::kWsd);
  rate.decay_steps = 20;
  EXPECT_EQ(learning_rate_at(rate, 11), 1e-3);
  EXPECT_EQ(learning_rate_at(rate, 90), 1e-3);
  EXPECT_LT(learning_rate_at(rate, 91), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 110), 1e-4);
}

TEST(Wsd, DecaysInItsShape) {
  LearningRateSpec rate = rate_of(RateSchedule::kWsd);
  rate.decay_steps = 20;
  const auto quarter = [&](DecayShape shape) {
    rate.decay_shape = shape;
    return learning_rate_at(rate, 95);
  };
  EXPECT_DOUBLE_EQ(quarter(DecayShape::kLinear), 1e-4 + 9e-4 * 0.75);
  EXPECT_DOUBLE_EQ(quarter(DecayShape::kCosine), 1e-4 + 9e-4 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(quarter(DecayShape::kOneMinusSqrt), 1e-4 + 9e-4 * 0.5);
}

}  // namespace
}  // namespace braid
