#include "report/memory_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "base/errors.h"
#include "base/expect_error.h"
#include "support/step_program.h"
#include "trace/task_timeline.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

constexpr size_t kActivation = static_cast<size_t>(BufferRole::kActivation);

/// a is filled and copied to b on another stream, b to `out`; c comes after a is dead.
Program copies() {
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const StreamId comm = builder.stream("comm", StreamKind::kComm);
  const BufferId a = builder.step("a", 64);   // 256 bytes
  const BufferId b = builder.step("b", 65);   // 260 bytes, so 512 as planned
  const BufferId c = builder.step("c", 128);  // 512 bytes
  const BufferId on_host = builder.on_host("h", 1000);
  const BufferId out = builder.persistent("out", 65);
  builder.fill(compute, a, 1);
  builder.fill(comm, b, 1);
  builder.fill(compute, a, 2);
  builder.copy(comm, b, out);
  builder.fill(compute, c, 1);
  builder.fill(compute, on_host, 1);
  return builder.finish();
}

MemoryCurve curve_of(std::span<const TaskTimes> times, size_t max_points = 100) {
  const Program program = copies();
  const Program* programs[] = {&program};
  return memory_curve(program, task_timeline(program, times), plan_memory(programs), max_points);
}

TEST(MemoryCurve, BuffersLiveFromTheirFirstTaskToTheirLast) {
  const TaskTimes times[] = {{10, 20}, {15, 25}, {20, 30}, {40, 50}, {60, 70}, {70, 80}};
  const MemoryCurve curve = curve_of(times);
  EXPECT_THAT(curve.time_ns, ElementsAre(0, 10, 15, 30, 50, 60, 70));
  EXPECT_THAT(curve.live_bytes[kActivation], ElementsAre(0, 256, 768, 512, 0, 512, 0));
  EXPECT_EQ(curve.high_bytes, 768);
  EXPECT_EQ(curve.persistent_bytes, 512);
}

TEST(MemoryCurve, StaysBelowThePlan) {
  const TaskTimes times[] = {{10, 20}, {15, 25}, {20, 30}, {40, 50}, {60, 70}, {70, 80}};
  const MemoryCurve curve = curve_of(times);
  EXPECT_GT(curve.high_bytes, 0);
  EXPECT_LE(curve.high_bytes, curve.step_bytes);
}

TEST(MemoryCurve, TasksThatDidNotRunDoNotCount) {
  const TaskTimes times[] = {{10, 20}, {}, {20, 30}, {}, {60, 70}, {70, 80}};
  EXPECT_THAT(curve_of(times).live_bytes[kActivation], ElementsAre(0, 256, 0, 512, 0));
}

TEST(MemoryCurve, FewPointsKeepThePeak) {
  const TaskTimes times[] = {{10, 20}, {15, 25}, {20, 30}, {40, 50}, {60, 70}, {70, 80}};
  const MemoryCurve curve = curve_of(times, 2);
  EXPECT_THAT(curve.time_ns, ElementsAre(15, 60));
  EXPECT_THAT(curve.live_bytes[kActivation], ElementsAre(768, 512));
  EXPECT_EQ(curve.high_bytes, 768);
}

TEST(MemoryCurve, ATimelineOfAnotherProgramIsABug) {
  RankTimeline timeline;
  timeline.tasks.push_back({.end_ns = 5, .task = 99});
  EXPECT_THAT(message_of<InternalError>([&] { memory_curve(copies(), timeline, {}, 10); }),
              testing::HasSubstr("task 99 of 6"));
}

}  // namespace
}  // namespace braid
