#include "passes/pipeline/early_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/expect_error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/streams/insert_events.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream t kind=comm priority=1\n"
    "buffer w f32 [64] param persistent device\n"
    "buffer a f32 [64] activation step device\n"
    "buffer b f32 [64] activation step device\n"
    "buffer x f32 [64] activation step device\n"
    "buffer y f32 [64] activation step device\n";
// a dies before y is made.
const std::string kTasks =
    "make(-> a) s forward mb=0 layer=0\n"
    "use(a -> b) s forward mb=0 layer=1\n"
    "take(-> x) s comm mb=1\n"
    "use(b -> w) s forward mb=0 layer=2\n"
    "take(-> y) s comm mb=2\n"
    "use(x, y -> w) s forward mb=1\n";

constexpr StreamId kOther{1};

std::string started(const std::string& tasks, std::span<const EarlyStart> starts) {
  const Program result = start_early(parse_program(kTables + tasks), starts);
  EXPECT_THAT(verify(result, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(verify(insert_events(result).program, 1), IsEmpty());
  return print_program(result).substr(kTables.size());
}

TEST(EarlyStart, WithoutStartsNothingChanges) {
  const Program program = parse_program(kTables + kTasks);
  EXPECT_EQ(start_early(program, {}), program);
}

TEST(EarlyStart, HandsMemoryOverWhereTheTaskNowBegins) {
  const std::array starts = {EarlyStart{TaskId(2), TaskId(1), kOther}};
  EXPECT_EQ(started(kTasks, starts),
            "make(-> a) s forward mb=0 layer=0\n"
            "undefine(-> x) s forward mb=1\n"
            "take(-> x) t comm mb=1\n"
            "use(a -> b) s forward mb=0 layer=1\n"
            "use(b -> w) s forward mb=0 layer=2\n"
            "take(-> y) s comm mb=2\n"
            "use(x, y -> w) s forward mb=1\n");
}

TEST(EarlyStart, ATaskMayOnlyChangeStreams) {
  const std::array starts = {EarlyStart{TaskId(4), TaskId(4), kOther}};
  EXPECT_EQ(started(kTasks, starts),
            "make(-> a) s forward mb=0 layer=0\n"
            "use(a -> b) s forward mb=0 layer=1\n"
            "take(-> x) s comm mb=1\n"
            "use(b -> w) s forward mb=0 layer=2\n"
            "undefine(-> y) s forward mb=2\n"
            "take(-> y) t comm mb=2\n"
            "use(x, y -> w) s forward mb=1\n");
}

TEST(EarlyStart, SeveralAtOnePlaceKeepTheirOrderBehindAllHandOvers) {
  const std::array at_a_task = {EarlyStart{TaskId(4), TaskId(1), kOther},
                                EarlyStart{TaskId(2), TaskId(1), kOther}};
  const std::string both =
      "undefine(-> x) s forward mb=1\n"
      "undefine(-> y) s forward mb=2\n"
      "take(-> x) t comm mb=1\n"
      "take(-> y) t comm mb=2\n";
  EXPECT_EQ(started(kTasks, at_a_task), "make(-> a) s forward mb=0 layer=0\n" + both +
                                            "use(a -> b) s forward mb=0 layer=1\n"
                                            "use(b -> w) s forward mb=0 layer=2\n"
                                            "use(x, y -> w) s forward mb=1\n");
  // In front of one that only changes streams: that one stays the first.
  const std::array at_a_start = {EarlyStart{TaskId(2), TaskId(2), kOther},
                                 EarlyStart{TaskId(4), TaskId(2), kOther}};
  EXPECT_EQ(started(kTasks, at_a_start),
            "make(-> a) s forward mb=0 layer=0\n"
            "use(a -> b) s forward mb=0 layer=1\n" +
                both +
                "use(b -> w) s forward mb=0 layer=2\n"
                "use(x, y -> w) s forward mb=1\n");
}

TEST(EarlyStart, HandsOverOnlyWhatNobodyHeldAndTheTaskWritesInFull) {
  // On its stream already; part of a buffer; in place; persistent; written before.
  const std::string rest = "use(b, x, y -> w) s forward\n";
  const std::array last = {EarlyStart{TaskId(1), TaskId(1), kOther}};
  for (const std::string take :
       {"take(-> y) t comm\n", "take(-> y[0:32]) s comm\n", "take(-> rw x) s comm\n",
        "take(-> w) s comm\n", "take(-> x) s comm\n"}) {
    const std::string tasks = "make(-> x) s forward\n" + take;
    EXPECT_THAT(started(tasks, last), Not(HasSubstr("undefine"))) << take;
  }
}

TEST(EarlyStart, TheBufferLivesFromItsNewPlaceAndNotFromTheBeginning) {
  // First a and b are in use, then y: beside y there is room for x, beside a and b there is not.
  const auto step_bytes = [](const EarlyStart& start) {
    const Program program =
        insert_events(start_early(parse_program(kTables + "make(-> a) s forward\n"
                                                          "use(a -> b) s forward\n"
                                                          "use(b -> w) s forward\n"
                                                          "make(-> y) s forward\n"
                                                          "take(-> x) s comm\n"
                                                          "use(x, y -> w) s forward\n"),
                                  std::span(&start, 1)))
            .program;
    const std::array programs = {&program};
    return plan_memory(programs).step_bytes;
  };
  EXPECT_EQ(step_bytes({TaskId(4), TaskId(4), kOther}), 2 * 256);
  EXPECT_EQ(step_bytes({TaskId(4), TaskId(3), kOther}), 2 * 256);
  EXPECT_EQ(step_bytes({TaskId(4), TaskId(1), kOther}), 3 * 256);
}

TEST(EarlyStart, RefusesToPassWhatTheTaskDependsOn) {
  const Program program = parse_program(kTables + kTasks);
  const auto refusal = [&](const EarlyStart& start) {
    return message_of<InternalError>([&] { start_early(program, std::span(&start, 1)); });
  };
  EXPECT_EQ(refusal({TaskId(5), TaskId(4), kOther}),
            "task #5 (use mb=1) cannot start in front of task #4: it depends on task #4 (take "
            "mb=2)");
  EXPECT_EQ(refusal({TaskId(1), TaskId(2), kOther}),
            "task #1 cannot start in front of task #2 on stream #1");
  EXPECT_EQ(refusal({TaskId(9), TaskId(2), kOther}),
            "task #9 cannot start in front of task #2 on stream #1");
  EXPECT_EQ(refusal({TaskId(2), TaskId(1), StreamId(7)}),
            "task #2 cannot start in front of task #1 on stream #7");
  const std::array twice = {EarlyStart{TaskId(2), TaskId(1), kOther},
                            EarlyStart{TaskId(2), TaskId(2), kOther}};
  EXPECT_EQ(message_of<InternalError>([&] { start_early(program, twice); }),
            "task #2 is to start twice");
}

TEST(EarlyStart, TasksThatMoveTogetherMayDependOnEachOther) {
  const std::array starts = {EarlyStart{TaskId(2), TaskId(1), kOther},
                             EarlyStart{TaskId(3), TaskId(1), kOther}};
  EXPECT_EQ(started("make(-> a) s forward\n"
                    "use(a -> w) s forward\n"
                    "take(-> x) s comm\n"
                    "cast(x -> y) s comm\n",
                    starts),
            "make(-> a) s forward\n"
            "undefine(-> x) s forward\n"
            "undefine(-> y) s forward\n"
            "take(-> x) t comm\n"
            "cast(x -> y) t comm\n"
            "use(a -> w) s forward\n");
}

}  // namespace
}  // namespace braid
