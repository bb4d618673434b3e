#include "passes/streams/insert_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/streams/assign_streams.h"
#include "support/program_files.h"
#include "support/random_program.h"
#include "support/symbolic.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kHeader =
    "stream s0 kind=compute priority=0\n"
    "stream s1 kind=comm priority=0\n"
    "stream s2 kind=copy priority=0\n"
    "buffer w f32 [8] activation persistent device\n"
    "buffer x f32 [8] activation persistent device\n"
    "buffer y f32 [8] activation persistent device\n"
    "buffer z f32 [8] activation persistent device\n";

std::string with_events(const std::string& tasks) {
  const Program program =
      insert_events(parse_program("program step rank=0 ranks=1 events=0\n" + kHeader + tasks))
          .program;
  const std::string text = print_program(program);
  return text.substr(text.find("device\n", text.find("buffer z")) + 7);
}

TEST(InsertEvents, WaitsForTheLatestAndLeavesOutWhatItImplies) {
  EXPECT_EQ(with_events("a(-> x) s0 forward\n"
                        "b(x -> y) s0 forward\n"
                        "c(x -> z) s1 forward\n"
                        "d(y, z -> w) s1 forward\n"),
            "a(-> x) s0 forward record=e0\n"
            "b(x -> y) s0 forward record=e1\n"
            "c(x -> z) s1 forward wait=e0\n"
            "d(y, z -> w) s1 forward wait=e1\n");
  // Two writers on one stream: the wait for the second orders the first too.
  EXPECT_EQ(with_events("a(-> x) s0 forward\n"
                        "b(-> y) s0 forward\n"
                        "c(x, y -> z) s1 forward\n"
                        "d(x -> w) s1 forward\n"),
            "a(-> x) s0 forward\n"
            "b(-> y) s0 forward record=e0\n"
            "c(x, y -> z) s1 forward wait=e0\n"
            "d(x -> w) s1 forward\n");
}

TEST(InsertEvents, FollowsEventsAcrossStreams) {
  EXPECT_EQ(with_events("a(-> x) s0 forward\n"
                        "b(x -> y) s1 forward\n"
                        "c(x, y -> z) s2 forward\n"
                        "d(z -> rw x) s0 forward\n"),
            "a(-> x) s0 forward record=e0\n"
            "b(x -> y) s1 forward record=e1 wait=e0\n"
            "c(x, y -> z) s2 forward record=e2 wait=e1\n"
            "d(z -> rw x) s0 forward wait=e2\n");
}

TEST(InsertEvents, NeedsOneEventForManyWaiters) {
  EXPECT_EQ(with_events("a(-> x) s0 forward\n"
                        "b(x) s1 forward\n"
                        "c(x) s2 forward\n"
                        "d(-> x) s0 forward\n"),
            "a(-> x) s0 forward record=e0\n"
            "b(x) s1 forward record=e1 wait=e0\n"
            "c(x) s2 forward record=e2 wait=e0\n"
            "d(-> x) s0 forward wait=e1,e2\n");
}

TEST(InsertEvents, ReplacesTheEventsThatAreThere) {
  const std::string text = "program step rank=0 ranks=1 events=2\n" + kHeader +
                           "a(-> x) s0 forward record=e1\n"
                           "b(x) s0 forward record=e0 wait=e1\n";
  const PassResult result = insert_events(parse_program(text));
  EXPECT_TRUE(result.report.changed);
  EXPECT_EQ(result.program.num_events, 0u);
  EXPECT_EQ(result.report.summary, "inserted 0 waits for 0 dependencies between streams");
  EXPECT_FALSE(insert_events(result.program).report.changed);
}

TEST(InsertEvents, MakesGoodProgramsOfAllTestPrograms) {
  for (const std::string& path : program_files("programs")) {
    SCOPED_TRACE(path);
    Program program = assign_streams(parse_program(read_program_text(path)), {}).program;
    program = insert_events(std::move(program)).program;
    EXPECT_THAT(verify(program), IsEmpty());
    EXPECT_FALSE(insert_events(program).report.changed);
  }
}

Program random_multi_stream(uint64_t seed) {
  return random_program(seed, {.num_tasks = 10 + static_cast<int>(seed % 40),
                               .num_buffers = 3 + static_cast<int>(seed % 7),
                               .num_streams = 2 + static_cast<int>(seed % 3)});
}

TEST(InsertEvents, OrdersAllThatConflictsAndKeepsTheMeaning) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program before = random_multi_stream(seed);
    const Program after = insert_events(before).program;
    ASSERT_THAT(verify(after), IsEmpty());
    const SymbolicState meaning = run_in_order(before);
    for (uint64_t schedule = 0; schedule < 4; ++schedule) {
      ASSERT_EQ(run_interleaved(after, schedule), meaning) << "schedule " << schedule;
    }
    Program without = after;
    clear_events(without);
    ASSERT_EQ(without, before);
    ASSERT_EQ(insert_events(after).program, after);
  }
}

Program without_wait(const Program& program, size_t removed) {
  Program result = program;
  result.waits.erase(result.waits.begin() + static_cast<ptrdiff_t>(removed));
  for (Task& task : result.tasks) {
    if (task.waits_begin > removed) {
      --task.waits_begin;
    } else if (task.waits_begin + task.num_waits > removed) {
      --task.num_waits;
    }
  }
  return result;
}

TEST(InsertEvents, NoWaitCanBeLeftOut) {
  size_t num_waits = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = insert_events(random_multi_stream(seed)).program;
    for (size_t i = 0; i < program.waits.size(); ++i) {
      ASSERT_THAT(verify(without_wait(program, i), 1),
                  ElementsAre(Field(&Violation::message, HasSubstr("race"))))
          << "wait " << i;
    }
    num_waits += program.waits.size();
  }
  EXPECT_GT(num_waits, 1000u);
}

TEST(InsertEvents, EveryPlantedSwapOfDependentTasksIsCaught) {
  size_t num_swaps = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = insert_events(random_multi_stream(seed)).program;
    for (size_t later = 0; later < program.tasks.size(); ++later) {
      for (const EventId event : program.waits_of(program.tasks[later])) {
        const auto recorder = std::ranges::find(program.tasks, event, &Task::record);
        Program swapped = program;
        std::swap(swapped.tasks[static_cast<size_t>(recorder - program.tasks.begin())],
                  swapped.tasks[later]);
        ASSERT_FALSE(verify(swapped, 1).empty()) << "task " << later;
        ++num_swaps;
      }
    }
  }
  EXPECT_GT(num_swaps, 1000u);
}

TEST(InsertEvents, EveryEventThatIsRecordedTooEarlyIsCaught) {
  size_t num_moved = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = insert_events(random_multi_stream(seed)).program;
    std::vector<size_t> last_on_stream(program.streams.size(), SIZE_MAX);
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      const size_t before = std::exchange(last_on_stream[program.tasks[i].stream.index()], i);
      if (!program.tasks[i].record.valid() || before == SIZE_MAX ||
          program.tasks[before].record.valid()) {
        continue;
      }
      Program early = program;
      early.tasks[before].record = std::exchange(early.tasks[i].record, EventId());
      ASSERT_THAT(verify(early, 1), ElementsAre(Field(&Violation::message, HasSubstr("race"))));
      ++num_moved;
    }
  }
  EXPECT_GT(num_moved, 500u);
}

}  // namespace
}  // namespace braid
