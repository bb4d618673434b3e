#include "train/log_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <ctime>
#include <limits>

#include "base/errors.h"

namespace braid {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr LogInterval::RunSize kRun{.num_steps = 1000, .global_batch = 16};

/// All but the time.
std::string line_of(LogInterval& interval) {
  const std::string line = interval.take_line(0, kRun);
  return line.substr(line.find(']') + 1);
}

StepRecord step_record(int64_t step, double loss) {
  return {.step = step,
          .loss = loss,
          .learning_rate = 2.5e-4,
          .grad_norm = 1.23456,
          .step_ms = 100,
          .tflops_per_s_per_rank = 30,
          .consumed_samples = 16 * step};
}

TEST(LogLine, IsThatOfMegatron) {
  LogInterval interval(0, 0);
  interval.add(step_record(10, 5.4321));
  EXPECT_EQ(line_of(interval),
            " iteration       10/    1000 | consumed samples:          160 |"
            " elapsed time per iteration (ms): 100.0 | throughput per GPU (TFLOP/s/GPU): 30.0 |"
            " learning rate: 2.500000E-04 | global batch size:    16 | lm loss: 5.432100E+00 |"
            " loss scale: 1.0 | grad norm: 1.235 | number of skipped iterations:   0 |"
            " number of nan iterations:   0 |");
}

std::string short_line_of(LogInterval& interval, int64_t num_steps = kRun.num_steps) {
  return interval.take_line(0, {.num_steps = num_steps}, LogFormat::kShort);
}

TEST(ShortLogLine, HasMeansOfTheInterval) {
  LogInterval interval(0, 0);
  StepRecord record = step_record(9, 5);
  record.tokens_per_s = 1000;
  interval.add(record);
  record = step_record(10, 6);
  record.step_ms = 300;
  record.tokens_per_s = 3000;
  interval.add(record);
  EXPECT_EQ(short_line_of(interval),
            "step   10/1000  loss 5.5000  grad 1.23  lr 2.50e-04  200 ms  2.50K tok/s");
}

TEST(ShortLogLine, HasALineMoreForWhatIsRare) {
  LogInterval interval(3, 1);
  StepRecord record = step_record(10, 5);
  record.mtp_losses = {6};
  record.skipped_steps = 3;
  record.nan_steps = 1;
  record.reruns = 1;
  interval.add(record);
  record.skipped_steps = 4;
  record.nan_steps = 2;
  interval.add(record);
  interval.set_expert_load(1.5);
  interval.set_room(0.75, 0.125);
  const std::string text = short_line_of(interval);
  EXPECT_EQ(
      text.substr(text.find('\n')),
      "\n     loss 2 ahead 6.0000, busiest expert 1.50x, room used 75%, dropped rows 12.5%, 2 "
      "reruns, 1 skipped steps, 1 NaN steps");
}

TEST(ShortLogLine, IsNoWiderThanATerminal) {
  LogInterval interval(0, 0);
  StepRecord record = step_record(999'999, 12.3456);
  record.grad_norm = 123.456;
  record.tokens_per_s = 123'456'789;
  interval.add(record);
  EXPECT_LE(short_line_of(interval, 1'000'000).size(), 80u);
}

TEST(ShortLogLine, OfSkippedStepsHasNoLoss) {
  LogInterval interval(0, 0);
  StepRecord record = step_record(1, 5);
  record.skipped_steps = 1;
  interval.add(record);
  EXPECT_THAT(short_line_of(interval), HasSubstr("  loss -  "));
}

TEST(LogLine, HasTheMeanLossOfEachDepthOfMultiTokenPrediction) {
  LogInterval interval(0, 0);
  StepRecord record = step_record(10, 5);
  record.mtp_losses = {6, 7.5};
  interval.add(record);
  record.mtp_losses = {5, 6.5};
  interval.add(record);
  EXPECT_THAT(line_of(interval), HasSubstr(" lm loss: 5.000000E+00 | mtp_1 loss: 5.500000E+00 |"
                                           " mtp_2 loss: 7.000000E+00 | loss scale: 1.0 |"));
}

TEST(LogLine, HasTheMeanSquaredLogSumExpOfStepsThatWereNotSkipped) {
  for (const bool is_short : {false, true}) {
    LogInterval interval(0, 0);
    StepRecord record = step_record(10, 5);
    record.z_loss = 20;
    interval.add(record);
    record.z_loss = 30;
    interval.add(record);
    record.z_loss = 1000;
    record.skipped_steps = 1;
    interval.add(record);
    EXPECT_THAT(is_short ? short_line_of(interval) : line_of(interval),
                HasSubstr(is_short ? "\n     z 25, 1 skipped" : " | z loss: 2.500000E+01 | "));
    record = step_record(11, 5);
    record.skipped_steps = 1;
    interval.add(record);
    EXPECT_THAT(line_of(interval), Not(HasSubstr("z loss")));
  }
}

TEST(LogLine, HasTheFiguresOfPairs) {
  for (const bool is_short : {false, true}) {
    LogInterval interval(0, 0);
    StepRecord record = step_record(10, 0.5);
    record.preference = {.chosen_reward = 0.5, .rejected_reward = -0.25, .accuracy = 1};
    interval.add(record);
    record.preference = {.chosen_reward = 1, .rejected_reward = -0.75, .accuracy = 0.5};
    interval.add(record);
    const std::string line = is_short ? short_line_of(interval) : line_of(interval);
    EXPECT_THAT(line, HasSubstr(is_short ? "\n     margin 1.250, chosen 0.750, rejected -0.500, "
                                           "accuracy 75.0%"
                                         : " preference loss: 5.000000E-01 | rewards chosen: "
                                           "7.500000E-01 | rewards rejected: -5.000000E-01 | "
                                           "rewards accuracy: 0.7500 |"));
    EXPECT_THAT(line, Not(HasSubstr("lm loss")));
  }
  const EvalRecord evaluation{
      .step = 20, .loss = 0.5, .preference = PreferenceRecord{.chosen_reward = 2, .accuracy = 0.9}};
  EXPECT_EQ(evaluation_line(evaluation, LogFormat::kShort),
            "step 20  held-out loss 0.5000  margin 2.000, accuracy 90.0%");
  EXPECT_EQ(evaluation_line(evaluation),
            " validation loss at iteration 20 | preference loss value: 5.000000E-01 | rewards "
            "margin: 2.000000E+00 | rewards accuracy: 0.9000 |");
}

TEST(LogLine, HasTheBusiestExpertIfLoadsWereSet) {
  LogInterval interval(0, 0);
  interval.add(step_record(10, 5.4321));
  interval.set_expert_load(3);
  interval.set_expert_load(1.756);
  EXPECT_THAT(line_of(interval),
              HasSubstr(" lm loss: 5.432100E+00 | busiest expert: 1.76x | loss scale: 1.0 |"));
  interval.add(step_record(11, 5));
  EXPECT_THAT(line_of(interval), Not(HasSubstr("expert")));
}

TEST(LogLine, HasRoomDroppedRowsAndRerunsIfThereAreSome) {
  LogInterval interval(0, 0);
  StepRecord again = step_record(10, 5);
  again.reruns = 2;
  interval.add(again);
  interval.add(step_record(11, 5));
  interval.set_room(1.254, 0.00125);
  EXPECT_THAT(line_of(interval),
              HasSubstr(" room used: 125% | dropped rows: 0.125% | reruns: 2 | loss scale: 1.0 |"));
  interval.add(step_record(12, 5));
  interval.set_room(0.5, 0);
  EXPECT_THAT(line_of(interval), HasSubstr(" room used: 50% | loss scale: 1.0 |"));
}

TEST(LogLine, BeginsWithTheLocalTimeInMicroseconds) {
  LogInterval interval(0, 0);
  interval.add(step_record(1, 1));
  const std::time_t seconds = 1'714'564'800;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), " [%Y-%m-%d %H:%M:%S.", &local);
  EXPECT_THAT(interval.take_line(int64_t{seconds} * 1'000'000'000 + 12'345'678, kRun),
              testing::StartsWith(std::string(text.data()) + "012345] iteration"));
}

TEST(LogLine, AveragesLossAndTimeOverTheInterval) {
  LogInterval interval(0, 0);
  interval.add(step_record(1, 4));
  StepRecord slow = step_record(2, 2);
  slow.step_ms = 300;
  slow.tflops_per_s_per_rank = 10;  // the same work
  slow.grad_norm = 7;
  interval.add(slow);
  const std::string line = line_of(interval);
  EXPECT_THAT(line, HasSubstr("(ms): 200.0 |"));
  EXPECT_THAT(line, HasSubstr("(TFLOP/s/GPU): 15.0 |"));  // work per time, not the mean of speeds
  EXPECT_THAT(line, HasSubstr("lm loss: 3.000000E+00 |"));
  EXPECT_THAT(line, HasSubstr("grad norm: 7.000 |"));  // of the last step
}

TEST(LogLine, LeavesSkippedStepsOutOfTheLoss) {
  LogInterval interval(0, 0);
  interval.add(step_record(1, 4));
  StepRecord skipped = step_record(2, std::numeric_limits<double>::quiet_NaN());
  skipped.skipped_steps = 1;
  skipped.nan_steps = 1;
  interval.add(skipped);
  const std::string line = line_of(interval);
  EXPECT_THAT(line, HasSubstr("lm loss: 4.000000E+00 |"));
  EXPECT_THAT(line, HasSubstr("skipped iterations:   1 |"));
  EXPECT_THAT(line, HasSubstr("nan iterations:   1 |"));
}

TEST(LogLine, CountsPerInterval) {
  LogInterval interval(5, 2);
  StepRecord record = step_record(1, 4);
  record.skipped_steps = 6;
  record.nan_steps = 2;
  interval.add(record);
  const std::string first = line_of(interval);
  EXPECT_THAT(first, HasSubstr("skipped iterations:   1 |"));
  EXPECT_THAT(first, HasSubstr("nan iterations:   0 |"));
  EXPECT_THAT(first, Not(HasSubstr("lm loss")));  // its only step was skipped
  EXPECT_TRUE(interval.empty());

  record.step = 2;
  interval.add(record);
  const std::string second = line_of(interval);
  EXPECT_THAT(second, HasSubstr("skipped iterations:   0 |"));
  EXPECT_THAT(second, HasSubstr("lm loss: 4.000000E+00 |"));
}

TEST(LogLine, OfNoStepIsABug) {
  LogInterval interval(0, 0);
  EXPECT_THROW(interval.take_line(0, kRun), InternalError);
}

TEST(LogLine, OfAnEvaluationHasLossAndPerplexity) {
  EXPECT_EQ(evaluation_line({100, 2.0}),
            " validation loss at iteration 100 | lm loss value: 2.000000E+00 |"
            " lm loss PPL: 7.389056E+00 |");
  EXPECT_EQ(evaluation_line({.step = 100, .loss = 2}, LogFormat::kShort),
            "step 100  held-out loss 2.0000  perplexity 7.389");
  EXPECT_THAT(evaluation_line({1, 1000}), HasSubstr("PPL: 4.851652E+08 |"));
}

}  // namespace
}  // namespace braid
