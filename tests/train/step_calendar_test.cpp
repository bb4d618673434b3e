#include "train/step_calendar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Calendar : public testing::Test {
 protected:
  Calendar() {
    config_.train.steps = 12;
    config_.eval.interval = 5;
    config_.checkpoint.interval = 4;
    config_.logging.trace_steps = {2, 7};
  }

  /// Those of the steps 1 to 12 for which `is` holds.
  template <typename Is>
  std::vector<int64_t> steps(const Is& is) const {
    const StepCalendar calendar(config_, stop_after_);
    std::vector<int64_t> found;
    for (int64_t step = 1; step <= 12; ++step) {
      if (is(calendar, step)) {
        found.push_back(step);
      }
    }
    return found;
  }
  std::vector<int64_t> evaluated() const {
    return steps(
        [](const StepCalendar& calendar, int64_t step) { return calendar.is_evaluated(step); });
  }
  std::vector<int64_t> saved(int64_t stopped_at = 0) const {
    return steps([=](const StepCalendar& calendar, int64_t step) {
      return calendar.is_saved(step, step == stopped_at);
    });
  }
  std::vector<int64_t> boundaries() const {
    return steps(
        [](const StepCalendar& calendar, int64_t step) { return calendar.is_boundary(step); });
  }

  RunConfig config_;
  std::optional<int64_t> stop_after_;
};

TEST_F(Calendar, EvaluatesAtIntervalsAndBehindTheLastStepOfTheRun) {
  EXPECT_THAT(evaluated(), ElementsAre(5, 10, 12));
  stop_after_ = 7;  // ends this process, not the run
  EXPECT_THAT(evaluated(), ElementsAre(5, 10, 12));
  config_.eval.interval = 0;
  EXPECT_THAT(evaluated(), IsEmpty());
}

TEST_F(Calendar, SavesAtIntervalsAndWhereTheProcessEnds) {
  config_.train.steps = 11;
  EXPECT_THAT(saved(), ElementsAre(4, 8, 11, 12));
  EXPECT_THAT(saved(6), ElementsAre(4, 6, 8, 11, 12));
  config_.checkpoint.at_end = false;
  EXPECT_THAT(saved(6), ElementsAre(4, 8, 12));
  config_.checkpoint.interval = 0;
  EXPECT_THAT(saved(6), IsEmpty());
  config_.checkpoint.at_end = true;
  EXPECT_THAT(saved(6), ElementsAre(6, 11, 12));
}

TEST_F(Calendar, EndsAfterTheStepThatWasAskedForIfTheRunIsLonger) {
  EXPECT_EQ(StepCalendar(config_, std::nullopt).last_step(), 12);
  EXPECT_EQ(StepCalendar(config_, 7).last_step(), 7);
  EXPECT_EQ(StepCalendar(config_, 70).last_step(), 12);
  stop_after_ = 7;
  config_.checkpoint.interval = 0;
  EXPECT_THAT(saved(), ElementsAre(7, 8, 9, 10, 11, 12));  // a later one is past the end as well
}

TEST_F(Calendar, ComparesReplicasAtIntervals) {
  const auto checked = [this] {
    return steps(
        [](const StepCalendar& calendar, int64_t step) { return calendar.is_checked(step); });
  };
  EXPECT_THAT(checked(), IsEmpty());
  config_.runtime.check_replicas = 3;
  EXPECT_THAT(checked(), ElementsAre(3, 6, 9, 12));
  EXPECT_THAT(boundaries(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12));
  config_.runtime.check_replicas = 0;
  EXPECT_THAT(checked(), IsEmpty());
}

TEST_F(Calendar, LoadsOfExpertsAreRecordedAtIntervalsAndBothEnds) {
  const auto loads = [this] {
    return steps([](const StepCalendar& calendar, int64_t step) {
      return calendar.are_loads_recorded(step);
    });
  };
  const auto counts = [this] {
    return steps([](const StepCalendar& calendar, int64_t step) {
      return calendar.are_counts_recorded(step);
    });
  };
  config_.moe.watch = 5;
  config_.moe.watch_counts = 7;
  EXPECT_THAT(loads(), ElementsAre(1, 5, 7, 10, 12));
  EXPECT_THAT(counts(), ElementsAre(1, 7, 12));
  config_.moe.watch_counts = 0;
  EXPECT_THAT(loads(), ElementsAre(1, 5, 10, 12));
  EXPECT_THAT(counts(), IsEmpty());
  config_.moe.watch = 0;
  config_.moe.watch_counts = 7;
  EXPECT_THAT(loads(), IsEmpty());
  EXPECT_THAT(counts(), IsEmpty());
}

// While a traced step runs, neither the previous nor the next step is in flight.
TEST_F(Calendar, NothingIsInFlightAroundWhatIsDoneBehindAStep) {
  EXPECT_THAT(boundaries(), ElementsAre(1, 2, 4, 5, 6, 7, 8, 10, 12));
  config_.logging.trace_steps = {1};
  EXPECT_THAT(boundaries(), ElementsAre(1, 4, 5, 8, 10, 12));
}

}  // namespace
}  // namespace braid
