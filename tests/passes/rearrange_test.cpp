#include "passes/rearrange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/expect_error.h"
#include "ir/dependencies.h"
#include "ir/text.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

const std::string kTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream t kind=comm priority=1\n"
    "buffer w f32 [4] param persistent device\n"
    "buffer a f32 [4] activation step device\n"
    "buffer b f32 [4] activation step device\n";
const std::string kTasks =
    "make(-> a) s forward mb=0\n"
    "use(a -> w[0:2]) s forward mb=1\n"
    "make(-> b) t comm mb=2 site=x\n"
    "use(b -> w[2:4]) s dgrad mb=3\n";

constexpr StreamId kCompute{0};
constexpr BufferId kA{1};
constexpr BufferId kB{2};

std::array<TaskId, 4> order(size_t a, size_t b, size_t c, size_t d) {
  return {TaskId(a), TaskId(b), TaskId(c), TaskId(d)};
}

TEST(Rearrange, MovesTasksAndHandsMemoryOver) {
  const Program program = parse_program(kTables + kTasks);
  const Label label = hand_over_label(program, 2, program.tasks[2]);
  const std::array hand_overs = {HandOver{kB, 0, kCompute, label},
                                 HandOver{kA, 4, kCompute, label}};
  EXPECT_EQ(print_program(rearrange(program, order(2, 0, 1, 3), hand_overs)).substr(kTables.size()),
            "undefine(-> b) s dgrad mb=3 site=x\n"
            "make(-> b) t comm mb=2 site=x\n"
            "make(-> a) s forward mb=0\n"
            "use(a -> w[0:2]) s forward mb=1\n"
            "use(b -> w[2:4]) s dgrad mb=3\n"
            "undefine(-> a) s dgrad mb=3 site=x\n");
}

TEST(Rearrange, TakesDependenciesThatTheCallerHas) {
  const Program program = parse_program(kTables + kTasks);
  const DependencyGraph dependencies = build_dependencies(program);
  EXPECT_EQ(rearrange(program, order(2, 0, 1, 3), {}, dependencies),
            rearrange(program, order(2, 0, 1, 3), {}));
  EXPECT_THAT(
      message_of<InternalError>([&] { rearrange(program, order(1, 0, 2, 3), {}, dependencies); }),
      HasSubstr("task #1 (use mb=1) cannot come before task #0 (make mb=0)"));
}

TEST(WithTasksInOrder, IsReorderTasks) {
  const Program program = parse_program(kTables.substr(0, kTables.find("events=0")) + "events=1" +
                                        kTables.substr(kTables.find("events=0") + 8) +
                                        "make(-> a) s forward mb=0 record=e0\n"
                                        "use(a -> w[0:2]) t forward mb=1 wait=e0\n"
                                        "make(-> b) t comm mb=2 site=x\n"
                                        "use(b -> w[2:4]) s dgrad mb=3\n");
  const Program moved = with_tasks_in_order(program, order(2, 3, 0, 1));
  EXPECT_EQ(moved, reorder_tasks(program, order(2, 3, 0, 1)));
  EXPECT_EQ(moved.tasks.size(), 4u);
  EXPECT_THAT(message_of<InternalError>([&] { with_tasks_in_order(program, order(0, 0, 2, 3)); }),
              HasSubstr("has two places"));
}

TEST(Rearrange, DropsEvents) {
  const Program program = parse_program(
      "program step rank=0 ranks=1 events=1\n"
      "stream s kind=compute priority=0\n"
      "norm() s forward record=e0\n"
      "norm() s forward wait=e0\n");
  const std::array keep = {TaskId(0), TaskId(1)};
  EXPECT_EQ(rearrange(program, keep, {}).num_events, 0u);
}

TEST(Rearrange, RefusesToPassWhatATaskDependsOn) {
  const Program program = parse_program(kTables + kTasks);
  EXPECT_EQ(message_of<InternalError>([&] { rearrange(program, order(1, 0, 2, 3), {}); }),
            "task #1 (use mb=1) cannot come before task #0 (make mb=0), on which it depends");
  EXPECT_THAT(message_of<InternalError>([&] { rearrange(program, order(0, 0, 2, 3), {}); }),
              HasSubstr("has two places"));
  EXPECT_THAT(message_of<InternalError>([&] { rearrange(program, std::array{TaskId(0)}, {}); }),
              HasSubstr("an order of 1 tasks for a program of 4"));
}

TEST(Rearrange, RefusesToGiveAwayWhatIsInUse) {
  const Program program = parse_program(kTables + kTasks);
  const auto refusal = [&](BufferId buffer, uint32_t position) {
    const std::array hand_overs = {HandOver{buffer, position, kCompute, {}}};
    return message_of<InternalError>([&] { rearrange(program, order(0, 1, 2, 3), hand_overs); });
  };
  EXPECT_THAT(refusal(kA, 1), HasSubstr("the memory of buffer a cannot change hands"));
  EXPECT_THAT(refusal(BufferId(0), 0), HasSubstr("buffer w"));  // keeps its content
  EXPECT_THAT(refusal(kA, 9), HasSubstr("behind the end"));
}

}  // namespace
}  // namespace braid
