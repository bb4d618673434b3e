#include "ir/race_detector.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "support/random_program.h"

namespace braid {
namespace {

/// Adds random events: valid ones, so that some dependencies are covered and some are not.
void add_random_events(Program& program, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<EventId> recorded;
  for (Task& task : program.tasks) {
    task.waits_begin = static_cast<uint32_t>(program.waits.size());
    while (!recorded.empty() && random() % 3 != 0) {
      // Mostly late events, which order more.
      const size_t back = std::min<size_t>(random() % 2, recorded.size() - 1);
      program.waits.push_back(recorded[recorded.size() - 1 - back]);
      ++task.num_waits;
    }
    if (random() % 8 != 0) {
      task.record = EventId(program.num_events++);
      recorded.push_back(task.record);
    }
  }
}

/// [later][earlier] by definition: the transitive closure of stream order and record -> wait.
std::vector<std::vector<bool>> happens_before(const Program& program) {
  const size_t n = program.tasks.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n));
  for (size_t later = 0; later < n; ++later) {
    const Task& task = program.tasks[later];
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const auto waits = program.waits_of(task);
      const bool direct = program.tasks[earlier].stream == task.stream ||
                          (program.tasks[earlier].record.valid() &&
                           std::ranges::find(waits, program.tasks[earlier].record) != waits.end());
      for (size_t i = 0; direct && i < earlier; ++i) {
        before[later][i] = before[later][i] || before[earlier][i];
      }
      before[later][earlier] = before[later][earlier] || direct;
    }
  }
  return before;
}

bool conflict(const Program& program, const Task& a, const Task& b) {
  for (size_t i = 0; i < program.operands_of(a).size(); ++i) {
    for (size_t j = 0; j < program.operands_of(b).size(); ++j) {
      if ((writes(program.spec(a).operands[i].access) ||
           writes(program.spec(b).operands[j].access)) &&
          program.operands_of(a)[i].overlaps(program.operands_of(b)[j])) {
        return true;
      }
    }
  }
  return false;
}

/// The first task that races with an earlier one, by comparing all pairs; the number of tasks if
/// there is none.
size_t first_race(const Program& program) {
  const auto before = happens_before(program);
  for (size_t later = 0; later < program.tasks.size(); ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      if (!before[later][earlier] &&
          conflict(program, program.tasks[earlier], program.tasks[later])) {
        return later;
      }
    }
  }
  return program.tasks.size();
}

TEST(HappensBefore, IsTheTransitiveClosure) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Program program = random_program(seed, {.num_streams = 4});
    add_random_events(program, seed);
    const auto expected = happens_before(program);
    HappensBefore order(program, Ordering::kEvents);
    for (uint32_t later = 0; later < program.tasks.size(); ++later) {
      order.start(TaskId(later));
      for (uint32_t earlier = 0; earlier < later; ++earlier) {
        ASSERT_EQ(order.is_ordered(earlier), expected[later][earlier]) << earlier << " " << later;
      }
      ASSERT_TRUE(order.is_ordered(later));
      order.finish(TaskId(later));
    }
  }
}

TEST(RaceDetector, FindsTheFirstRaceThatComparingAllPairsFinds) {
  size_t num_racy = 0;
  constexpr uint64_t kNumPrograms = 2000;
  for (uint64_t seed = 0; seed < kNumPrograms; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Program program = random_program(seed, {.num_tasks = 2 + static_cast<int>(seed % 16),
                                            .num_buffers = 10,
                                            .num_streams = 2 + static_cast<int>(seed % 3)});
    add_random_events(program, seed);
    const size_t expected = first_race(program);
    num_racy += expected < program.tasks.size() ? 1 : 0;
    std::string message = "none";
    RaceDetector(program, Ordering::kEvents, [&](std::string found) {
      message = std::move(found);
      return false;
    }).run();
    if (expected == program.tasks.size()) {
      ASSERT_EQ(message, "none");
    } else {
      ASSERT_NE(message.find("race: task " + std::to_string(expected) + " ("), std::string::npos)
          << message << ", expected task " << expected;
    }
  }
  // Neither side of the comparison is rare.
  EXPECT_GT(num_racy, kNumPrograms / 10);
  EXPECT_LT(num_racy, kNumPrograms * 9 / 10);
}

}  // namespace
}  // namespace braid
