#include "train/rerun.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace braid {
namespace {

using ::testing::HasSubstr;

const RerunCause kSpike{.finding = "step 3: a spike"};
const RerunCause kCopies{.finding = "rank 1 differs", .ranks = {1}};

/// Which may go back to step 0, after steps of loss 2.
Rerun after_steps(int64_t count, const Rerun::Options& options = {.most_steps = 10}) {
  Rerun rerun(options);
  rerun.set_start(0, "");
  for (int64_t step = 1; step <= count; ++step) {
    rerun.add(step, {.loss = 2, .grad_norm = 1});
  }
  return rerun;
}

TEST(Rerun, ComparesBits) {
  Rerun rerun = after_steps(2);
  rerun.add(3, {.loss = std::nan(""), .grad_norm = 1});
  rerun.begin(kSpike, 3);
  EXPECT_TRUE(rerun.ends_at(3));
  rerun.add(1, {.loss = 2, .grad_norm = 1});
  rerun.add(2, {.loss = 2, .grad_norm = 1});
  rerun.add(3, {.loss = std::nan(""), .grad_norm = 1});
  EXPECT_EQ(rerun.first_difference(), 0);
  EXPECT_THAT(rerun.progress(3), HasSubstr("steps 1 to 3 ran again from the initial weights with "
                                           "the same bits"));
  EXPECT_THAT(rerun.end(0), HasSubstr("with the same bits"));
  EXPECT_FALSE(rerun.is_running());
  EXPECT_EQ(rerun.progress(3), "");
}

TEST(Rerun, NamesTheFirstStepThatDiffers) {
  Rerun rerun = after_steps(3);
  rerun.begin(kSpike, 3);
  rerun.add(1, {.loss = 2, .grad_norm = 1});
  rerun.add(2, {.loss = 2, .grad_norm = std::nextafter(1.0, 2.0)});
  rerun.add(3, {.loss = 4, .grad_norm = 1});
  EXPECT_EQ(rerun.first_difference(), 2);
  EXPECT_THAT(rerun.end(2), HasSubstr("step 2 was the first with other bits: a device failed"));
}

TEST(Rerun, StepsRunAgainOnceForASpikeAndOnceForCopies) {
  Rerun rerun = after_steps(3);
  rerun.begin(kSpike, 3);
  EXPECT_THAT(rerun.refusal(kCopies, 3), HasSubstr("steps 1 to 3 run again already"));
  rerun.end(0);
  EXPECT_EQ(rerun.refusal(kSpike, 4), "steps after the initial weights have run again before");
  EXPECT_EQ(rerun.refusal(kCopies, 4), "");
  rerun.begin(kCopies, 4);
  rerun.end(0);
  EXPECT_EQ(rerun.refusal({.finding = "", .ranks = {2}}, 5),
            "steps after the initial weights have run again before");
  rerun.set_start(5, "a/step_5");
  EXPECT_EQ(rerun.refusal(kSpike, 6), "");
  EXPECT_EQ(rerun.refusal({.finding = "", .ranks = {2}}, 6), "");
  EXPECT_THAT(rerun.refusal(kCopies, 6), HasSubstr("rank 1 differed before, after step 4"));
}

TEST(Rerun, HasLimits) {
  EXPECT_EQ(after_steps(10).refusal(kSpike, 10), "");
  EXPECT_EQ(after_steps(11).refusal(kSpike, 11),
            "11 steps since the initial weights, more than runtime.rerun_steps = 10");
  EXPECT_EQ(after_steps(1, {.most_steps = 0}).refusal(kCopies, 1), "runtime.rerun_steps = 0");
  const Rerun varying = after_steps(1, {.most_steps = 10, .has_same_bits = false});
  EXPECT_EQ(varying.refusal(kSpike, 1), "runtime.repeatable = false");
  EXPECT_EQ(varying.refusal(kCopies, 1), "");
}

TEST(Rerun, AFailureOfAnotherRankIsNotPersistent) {
  Rerun rerun = after_steps(2);
  rerun.begin(kCopies, 2);
  EXPECT_THAT(rerun.failure(kCopies, 2), HasSubstr("the fault is persistent"));
  const std::string other = rerun.failure({.finding = "rank 2 differs", .ranks = {2}}, 2);
  EXPECT_THAT(other, HasSubstr("; the steps since the initial weights ran again because rank 1"));
}

}  // namespace
}  // namespace braid
