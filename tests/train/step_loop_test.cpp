#include "train/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace braid {
namespace {

using ::testing::ElementsAre;

/// The calls of a loop in their order: "b1" begins step 1, "e1" ends it, "@1" is at its boundary,
/// "@1!" the same where the run stops.
struct RecordedLoop {
  std::vector<std::string> calls;
  std::set<int64_t> boundaries;
  int64_t stop_after = -1;
  int64_t spike_at = -1;
  int64_t back_from = -1;  // once
  int64_t back_to = -1;
  StepLoop loop;

  RecordedLoop(int64_t first_step, int64_t last_step, int max_in_flight) {
    const auto add = [this](const std::string& call) { calls.push_back(call); };
    loop = {.first_step = first_step,
            .last_step = last_step,
            .max_in_flight = max_in_flight,
            .begin = [=](int64_t step) { add("b" + std::to_string(step)); },
            .end = [=](int64_t step) { add("e" + std::to_string(step)); },
            .is_boundary = [this](int64_t step) { return boundaries.contains(step); },
            .should_stop = [this](int64_t step) { return step == stop_after; },
            .needs_boundary = [this](int64_t step) { return step == spike_at; },
            .at_boundary =
                [=, this](int64_t step, bool stops) {
                  add("@" + std::to_string(step) + (stops ? "!" : ""));
                  return step == std::exchange(back_from, -1) ? back_to : step;
                }};
  }
  RecordedLoop(const RecordedLoop&) = delete;
  RecordedLoop& operator=(const RecordedLoop&) = delete;
};

TEST(StepLoop, OneInFlightIsOneAfterTheOther) {
  RecordedLoop one(1, 3, 1);
  one.boundaries = {2};
  EXPECT_EQ(run_steps(one.loop), 3);
  EXPECT_THAT(one.calls, ElementsAre("b1", "e1", "b2", "e2", "@2", "b3", "e3", "@3"));
}

TEST(StepLoop, TheNextStepBeginsBeforeTheOneInFrontEnds) {
  RecordedLoop two(5, 8, 2);
  EXPECT_EQ(run_steps(two.loop), 8);
  EXPECT_THAT(two.calls, ElementsAre("b5", "b6", "e5", "b7", "e6", "b8", "e7", "e8", "@8"));
}

TEST(StepLoop, NothingIsInFlightAtABoundary) {
  RecordedLoop two(1, 5, 2);
  two.boundaries = {1, 3};
  EXPECT_EQ(run_steps(two.loop), 5);
  EXPECT_THAT(two.calls, ElementsAre("b1", "e1", "@1", "b2", "b3", "e2", "e3", "@3", "b4", "b5",
                                     "e4", "e5", "@5"));
}

TEST(StepLoop, AStopWaitsForTheStepsInFlight) {
  RecordedLoop two(1, 9, 2);
  two.stop_after = 2;
  EXPECT_EQ(run_steps(two.loop), 3);
  EXPECT_THAT(two.calls, ElementsAre("b1", "b2", "e1", "b3", "e2", "e3", "@3!"));
  RecordedLoop one(1, 9, 1);
  one.stop_after = 2;
  EXPECT_EQ(run_steps(one.loop), 2);
  EXPECT_EQ(one.calls.back(), "@2!");
}

TEST(StepLoop, GoesBackFromABoundary) {
  RecordedLoop two(1, 4, 2);
  two.boundaries = {3};
  two.back_from = 3;
  two.back_to = 1;
  EXPECT_EQ(run_steps(two.loop), 4);
  EXPECT_THAT(two.calls, ElementsAre("b1", "b2", "e1", "b3", "e2", "e3", "@3", "b2", "b3", "e2",
                                     "e3", "@3", "b4", "e4", "@4"));
}

TEST(StepLoop, GoesBackFromTheLastStepAndFromAStop) {
  RecordedLoop last(1, 2, 1);
  last.back_from = 2;
  last.back_to = 0;
  EXPECT_EQ(run_steps(last.loop), 2);
  EXPECT_THAT(last.calls, ElementsAre("b1", "e1", "b2", "e2", "@2", "b1", "e1", "b2", "e2", "@2"));
  RecordedLoop stopped(1, 9, 1);
  stopped.stop_after = 2;
  stopped.back_from = 2;
  stopped.back_to = 1;
  EXPECT_EQ(run_steps(stopped.loop), 2);
  EXPECT_THAT(stopped.calls, ElementsAre("b1", "e1", "b2", "e2", "@2!", "b2", "e2", "@2!"));
}

TEST(StepLoop, ABoundaryThatAStepNeedsWaitsForTheStepsInFlight) {
  RecordedLoop two(1, 5, 2);
  two.spike_at = 1;
  EXPECT_EQ(run_steps(two.loop), 5);
  EXPECT_THAT(two.calls,
              ElementsAre("b1", "b2", "e1", "e2", "@2", "b3", "b4", "e3", "b5", "e4", "e5", "@5"));
  RecordedLoop one(1, 3, 1);
  one.spike_at = 1;
  EXPECT_EQ(run_steps(one.loop), 3);
  EXPECT_THAT(one.calls, ElementsAre("b1", "e1", "@1", "b2", "e2", "b3", "e3", "@3"));
}

TEST(StepLoop, AStopAtABoundaryIsOneBoundary) {
  RecordedLoop two(1, 9, 2);
  two.boundaries = {2};
  two.stop_after = 1;
  EXPECT_EQ(run_steps(two.loop), 2);
  EXPECT_THAT(two.calls, ElementsAre("b1", "b2", "e1", "e2", "@2!"));
}

TEST(StepLoop, AStopIsAskedForUntilThereIsOne) {
  RecordedLoop two(1, 9, 2);
  std::vector<int64_t> asked;
  two.loop.should_stop = [&](int64_t step) {
    asked.push_back(step);
    return step >= 3;
  };
  EXPECT_EQ(run_steps(two.loop), 4);
  EXPECT_THAT(asked, ElementsAre(1, 2, 3));
}

TEST(StepLoop, DoesNothingWhereThereIsNothingToDo) {
  RecordedLoop two(4, 3, 2);
  EXPECT_EQ(run_steps(two.loop), 3);
  EXPECT_TRUE(two.calls.empty());
}

TEST(StepLoop, AnErrorLeavesTheStepsBehindItAlone) {
  RecordedLoop two(1, 9, 2);
  two.loop.end = [](int64_t) { throw std::runtime_error("not a number"); };
  EXPECT_THROW(run_steps(two.loop), std::runtime_error);
  EXPECT_THAT(two.calls, ElementsAre("b1", "b2"));
}

}  // namespace
}  // namespace braid
