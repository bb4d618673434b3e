#include "runtime/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

namespace braid {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kErase = "\r\x1b[K";

int num_characters(std::string_view utf8) {
  int count = 0;
  for (const char byte : utf8) {
    count += (static_cast<uint8_t>(byte) & 0xc0) != 0x80 ? 1 : 0;
  }
  return count;
}

ProgressState halfway() {
  return {.step = 50,
          .num_steps = 100,
          .loss = 3.2141,
          .valid_loss = 3.402,
          .tokens_per_s = 18432,
          .seconds_left = 83};
}

TEST(ProgressLine, ShowsWhatIsKnown) {
  EXPECT_EQ(progress_line({.step = 1, .num_steps = 4}, 40),
            " 25% ━━━━━━━╸──────────────────────  1/4");
  EXPECT_EQ(progress_line(halfway(), 120),
            " 50% ━━━━━━━━━━━━━━━━━━━━────────────────────  50/100  loss 3.214  valid 3.402  "
            "18.4K tokens/s  ETA 1 min 23 s");
}

TEST(ProgressLine, LeavesOutWhatIsNotANumber) {
  ProgressState state = halfway();
  state.loss = std::numeric_limits<double>::quiet_NaN();
  state.tokens_per_s = std::numeric_limits<double>::infinity();
  const std::string line = progress_line(state, 120);
  EXPECT_THAT(line, Not(HasSubstr("loss")));
  EXPECT_THAT(line, HasSubstr("valid 3.402"));
}

TEST(ProgressLine, FitsAnyWidth) {
  for (int columns = 0; columns <= 150; ++columns) {
    for (int64_t step : {0, 1, 50, 99, 100}) {
      ProgressState state = halfway();
      state.step = step;
      EXPECT_LE(num_characters(progress_line(state, columns)), columns) << columns;
    }
  }
}

TEST(ProgressLine, GivesUpTheLeastImportantFirst) {
  EXPECT_THAT(progress_line(halfway(), 76), Not(HasSubstr("tokens/s")));
  EXPECT_THAT(progress_line(halfway(), 76), HasSubstr("valid"));
  EXPECT_THAT(progress_line(halfway(), 55), Not(HasSubstr("valid")));
  EXPECT_THAT(progress_line(halfway(), 55), HasSubstr("ETA"));
  EXPECT_THAT(progress_line(halfway(), 36), HasSubstr("loss 3.214"));
  EXPECT_THAT(progress_line(halfway(), 25), HasSubstr("50/100"));
}

TEST(ProgressLine, IsFullAtTheEndAndNeverMore) {
  EXPECT_THAT(progress_line({.step = 9, .num_steps = 9}, 30),
              testing::AllOf(HasSubstr("100% ━━━━━"), Not(HasSubstr("─"))));
  EXPECT_EQ(progress_line({.step = 18, .num_steps = 9}, 14).substr(0, 4), "100%");
  EXPECT_EQ(progress_line({.step = 0, .num_steps = 0}, 20).substr(0, 4), "  0%");
}

class ProgressBarTest : public testing::Test {
 protected:
  void update(int64_t step) { bar_.update({.step = step, .num_steps = 100}); }
  std::string take_output() { return std::exchange(output_, {}); }

  int64_t now_ns_ = 1'000'000'000;
  int columns_ = 41;
  std::string output_;
  ProgressBar bar_{{.print = [this](std::string_view text) { output_ += text; },
                    .columns = [this] { return columns_; },
                    .now_ns = [this] { return now_ns_; }}};
};

TEST_F(ProgressBarTest, RedrawsInPlaceAndNeverFillsTheLastColumn) {
  update(1);
  EXPECT_EQ(take_output(), "\r" + progress_line({.step = 1, .num_steps = 100}, 40) + "\x1b[K");
}

TEST_F(ProgressBarTest, RedrawsAtMostTenTimesASecond) {
  int num_draws = 0;
  for (int64_t step = 1; step <= 99; ++step) {
    update(step);
    num_draws += take_output().empty() ? 0 : 1;
    now_ns_ += 10'000'000;
  }
  EXPECT_EQ(num_draws, 10);
}

TEST_F(ProgressBarTest, DrawsTheLastStepAtOnce) {
  update(99);
  take_output();
  update(100);
  EXPECT_THAT(take_output(), HasSubstr("100%"));
}

TEST_F(ProgressBarTest, SurvivesAClockThatIsSetBack) {
  update(1);
  take_output();
  now_ns_ -= 500'000'000;
  update(2);
  EXPECT_THAT(take_output(), HasSubstr("2/100"));
}

TEST_F(ProgressBarTest, MakesWayForLines) {
  update(7);
  const std::string bar = take_output();
  bar_.print_above("a line\n");
  EXPECT_EQ(take_output(), std::string(kErase) + "a line\n" + bar);
}

TEST_F(ProgressBarTest, PrintsNothingOfItselfUnlessItIsDrawn) {
  bar_.print_above("a line\n");
  bar_.erase();
  EXPECT_EQ(take_output(), "a line\n");
}

TEST_F(ProgressBarTest, ErasesItselfOnce) {
  update(7);
  take_output();
  bar_.erase();
  bar_.erase();
  EXPECT_EQ(take_output(), kErase);
}

}  // namespace
}  // namespace braid
