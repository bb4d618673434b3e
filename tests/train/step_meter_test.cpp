#include "train/step_meter.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/errors.h"
#include "runtime/engine.h"

namespace braid {
namespace {

constexpr int64_t kMs = 1'000'000;

class Meter : public testing::Test {
 protected:
  StepMeter make() {
    return StepMeter({.global_batch = 4,
                      .tokens_per_step = 4 * 32,
                      .flops_per_token = 5e9,
                      .num_ranks = 2,
                      .now_ns = [this] { return now_ns_; }});
  }

  int64_t now_ns_ = -70'000 * kMs;  // clocks count from anywhere
};

TEST_F(Meter, SaysWhatAStepWas) {
  StepMeter meter = make();
  meter.begin(3, 0.125);
  now_ns_ += 250 * kMs;
  const StepRecord record = meter.end({.loss = 1.5, .grad_norm = 0.75});
  EXPECT_EQ(record.step, 3);
  EXPECT_EQ(record.loss, 1.5);
  EXPECT_EQ(record.learning_rate, 0.125);
  EXPECT_EQ(record.grad_norm, 0.75);
  EXPECT_DOUBLE_EQ(record.step_ms, 250);
  EXPECT_DOUBLE_EQ(record.tokens_per_s, 512);
  EXPECT_DOUBLE_EQ(record.tflops_per_s_per_rank, 512 * 5e9 * 1e-12 / 2);
  EXPECT_EQ(record.consumed_samples, 12);
  EXPECT_EQ(record.consumed_tokens, 12 * 32);
}

TEST_F(Meter, AStepInFlightBehindAnotherCountsFromItsEnd) {
  StepMeter meter = make();
  meter.begin(1, 0.1);
  now_ns_ += 10 * kMs;
  meter.begin(2, 0.2);
  now_ns_ += 90 * kMs;
  EXPECT_DOUBLE_EQ(meter.end({}).step_ms, 100);
  now_ns_ += 70 * kMs;
  const StepRecord second = meter.end({});
  EXPECT_DOUBLE_EQ(second.step_ms, 70);
  EXPECT_EQ(second.learning_rate, 0.2);
  now_ns_ += 5000 * kMs;  // an evaluation, say
  meter.begin(3, 0.3);
  now_ns_ += 80 * kMs;
  EXPECT_DOUBLE_EQ(meter.end({}).step_ms, 80);
  EXPECT_DOUBLE_EQ(meter.median_tokens_per_s(), 4 * 32 / 0.08);
}

TEST_F(Meter, StepsEndWhenTheDeviceEndsThemAndNotWhenTheHostLooks) {
  StepMeter meter = make();
  meter.begin(1, 0.1);
  meter.begin(2, 0.1);
  now_ns_ += 130 * kMs;  // the launch of the second took so long
  EXPECT_DOUBLE_EQ(meter.end({.lateness_ns = 30 * kMs}).step_ms, 100);
  now_ns_ += 70 * kMs;  // no launch after it
  EXPECT_DOUBLE_EQ(meter.end({}).step_ms, 100);
}

TEST_F(Meter, CountsOnFromTheRecordsOfAnEarlierProcess) {
  StepMeter meter = make();
  meter.continue_from({.skipped_steps = 5, .nan_steps = 2});
  const auto step = [&](const StepResult& result) {
    meter.begin(8, 0.1);
    now_ns_ += kMs;
    return meter.end(result);
  };
  EXPECT_EQ(step({.loss = 1}).skipped_steps, 5);
  const StepRecord skipped = step({.loss = 1, .skipped = true});
  EXPECT_EQ(skipped.skipped_steps, 6);
  EXPECT_EQ(skipped.nan_steps, 2);
  const StepRecord nan = step({.loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_EQ(nan.skipped_steps, 6);
  EXPECT_EQ(nan.nan_steps, 3);
}

TEST_F(Meter, WithoutStepsThereIsNoSpeed) {
  StepMeter meter = make();
  EXPECT_EQ(meter.median_tokens_per_s(), 0);
  meter.begin(1, 0.1);
  EXPECT_EQ(meter.median_tokens_per_s(), 0);
  now_ns_ += kMs;
  meter.end({});
  EXPECT_THROW(meter.end({}), InternalError);
}

}  // namespace
}  // namespace braid
