#include "ir/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/text.h"
#include "support/random_program.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint32_t> predecessors(const DependencyGraph& graph, size_t task) {
  std::vector<uint32_t> ids;
  for (const TaskId id : graph.of(TaskId(task))) {
    ids.push_back(id.value);
  }
  return ids;
}

DependencyGraph dependencies_of(const std::string& tasks) {
  return build_dependencies(
      parse_program("program step rank=0 ranks=1 events=0\n"
                    "stream s kind=compute priority=0\n"
                    "buffer x f32 [8] activation step device\n"
                    "buffer y f32 [8] activation step device\n" +
                    tasks));
}

TEST(Dependencies, ReadsFollowTheLastWriteAndWritesTheReadsSince) {
  const DependencyGraph graph = dependencies_of(
      "w(-> x) s forward\n"     // 0
      "r(x) s forward\n"        // 1
      "r(x) s forward\n"        // 2
      "w(-> x) s forward\n"     // 3
      "r(x -> y) s forward\n"   // 4
      "a(-> rw x) s forward\n"  // 5
      "r(y) s forward\n");      // 6
  EXPECT_THAT(predecessors(graph, 0), IsEmpty());
  EXPECT_THAT(predecessors(graph, 1), ElementsAre(0));
  EXPECT_THAT(predecessors(graph, 2), ElementsAre(0));
  EXPECT_THAT(predecessors(graph, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(predecessors(graph, 4), ElementsAre(3));
  EXPECT_THAT(predecessors(graph, 5), ElementsAre(3, 4));
  EXPECT_THAT(predecessors(graph, 6), ElementsAre(4));
}

TEST(Dependencies, PartsOfABufferAreApart) {
  const DependencyGraph graph = dependencies_of(
      "w(-> x[0:4]) s forward\n"  // 0
      "w(-> x[4:8]) s forward\n"  // 1
      "r(x[0:3]) s forward\n"     // 2
      "r(x[3:5]) s forward\n"     // 3
      "w(-> x[2:3]) s forward\n"  // 4
      "r(x) s forward\n"          // 5
      "w(-> x) s forward\n"       // 6
      "r(x[7:8]) s forward\n"     // 7
      "r(x[3:3]) s forward\n");   // 8: nothing
  EXPECT_THAT(predecessors(graph, 1), IsEmpty());
  EXPECT_THAT(predecessors(graph, 2), ElementsAre(0));
  EXPECT_THAT(predecessors(graph, 3), ElementsAre(0, 1));
  EXPECT_THAT(predecessors(graph, 4), ElementsAre(0, 2));
  EXPECT_THAT(predecessors(graph, 5), ElementsAre(0, 1, 4));
  EXPECT_THAT(predecessors(graph, 6), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(predecessors(graph, 7), ElementsAre(6));
  EXPECT_THAT(predecessors(graph, 8), IsEmpty());
}

TEST(Dependencies, ATaskDoesNotDependOnItself) {
  const DependencyGraph graph = dependencies_of(
      "w(-> x) s forward\n"
      "a(x[0:4], x[2:6] -> rw x[2:8], x[0:2]) s forward\n"
      "r(x[0:1]) s forward\n");
  EXPECT_THAT(predecessors(graph, 1), ElementsAre(0));
  EXPECT_THAT(predecessors(graph, 2), ElementsAre(1));
}

/// [later][earlier]: the two touch a common element and one of them writes it.
std::vector<std::vector<bool>> conflicts(const Program& program) {
  const size_t n = program.tasks.size();
  std::vector<std::vector<bool>> result(n, std::vector<bool>(n));
  for (size_t later = 0; later < n; ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const Task& a = program.tasks[earlier];
      const Task& b = program.tasks[later];
      for (size_t i = 0; i < program.operands_of(a).size(); ++i) {
        for (size_t j = 0; j < program.operands_of(b).size(); ++j) {
          const bool one_writes = writes(program.spec(a).operands[i].access) ||
                                  writes(program.spec(b).operands[j].access);
          if (one_writes && program.operands_of(a)[i].overlaps(program.operands_of(b)[j])) {
            result[later][earlier] = true;
          }
        }
      }
    }
  }
  return result;
}

/// Adds what follows from pairs that are in the relation already.
void close(std::vector<std::vector<bool>>& before) {
  for (size_t later = 0; later < before.size(); ++later) {
    for (size_t middle = later; middle-- > 0;) {
      for (size_t earlier = 0; before[later][middle] && earlier < middle; ++earlier) {
        before[later][earlier] = before[later][earlier] || before[middle][earlier];
      }
    }
  }
}

TEST(Dependencies, AgreeWithComparingAllPairs) {
  for (uint64_t seed = 0; seed < thinned_count(300u, 5); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = random_program(seed, {.num_tasks = 50, .num_buffers = 4});
    const DependencyGraph graph = build_dependencies(program);
    const auto conflict = conflicts(program);
    std::vector<std::vector<bool>> before(conflict.size(), std::vector<bool>(conflict.size()));
    for (size_t task = 0; task < conflict.size(); ++task) {
      const auto row = predecessors(graph, task);
      EXPECT_TRUE(std::ranges::is_sorted(row));
      EXPECT_EQ(std::ranges::adjacent_find(row), row.end());
      for (const uint32_t earlier : row) {
        ASSERT_LT(earlier, task);
        EXPECT_TRUE(conflict[task][earlier]) << earlier << " before " << task << " for no reason";
        before[task][earlier] = true;
      }
    }
    auto expected = conflict;
    close(expected);
    close(before);
    ASSERT_EQ(before, expected);
  }
}

TEST(Dependencies, LeaveOutWhatTheLastWriterImplies) {
  // Every task writes the same buffer: one predecessor each, not all that came before.
  std::string tasks;
  for (int i = 0; i < 100; ++i) {
    tasks += "w(-> x) s forward\n";
  }
  EXPECT_EQ(dependencies_of(tasks).predecessors.size(), 99u);
}

}  // namespace
}  // namespace braid
