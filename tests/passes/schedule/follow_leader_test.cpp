#include "passes/schedule/follow_leader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ir/dependencies.h"
#include "ir/text.h"
#include "passes/rearrange.h"
#include "support/random_program.h"
#include "support/symbolic.h"

namespace braid {
namespace {

const std::string kTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "buffer a f32 [8] main_grad persistent device\n"
    "buffer b f32 [8] main_grad persistent device\n"
    "buffer c f32 [8] main_grad persistent device\n"
    "buffer d f32 [8] activation persistent device\n";

std::string add(const std::string& from, const std::string& to, const std::string& label) {
  return "accumulate(" + from + " -> rw " + to + ") s " + label + "\n";
}

Program program_of(const std::string& tasks) {
  return parse_program(kTables + tasks);
}

std::string text_of(const Program& program) {
  return print_program(program).substr(kTables.size());
}

const std::string kFirst = "wgrad mb=0 vs=0 layer=1 site=fc";
const std::string kSecond = "wgrad mb=0 vs=0 layer=2 site=fc";

TEST(FollowOrder, GivesTasksThatBothHaveTheOrderOfTheLeader) {
  const Program leader = program_of(add("d", "a", kFirst) + add("d", "b", kSecond));
  const Program follower = program_of(add("c", "a", kFirst) + add("d", "b", kSecond));
  const std::vector<TaskId> order = {TaskId(size_t{1}), TaskId(size_t{0})};
  EXPECT_EQ(text_of(rearrange(follower, follow_order(leader, order, follower), {})),
            add("d", "b", kSecond) + add("c", "a", kFirst));
}

// The leader's task of that label, which it runs last, is another one: it writes b.
TEST(FollowOrder, TakesNoTaskOfTheSameLabelOnAnotherBufferForTheSame) {
  const Program leader = program_of(add("d", "b", kFirst) + add("d", "a", kSecond));
  const Program follower =
      program_of(add("d", "c", kFirst) + add("d", "b", kFirst) + add("d", "a", kSecond));
  const std::vector<TaskId> order = {TaskId(size_t{1}), TaskId(size_t{0})};
  EXPECT_EQ(same_tasks(leader, follower), (std::vector<std::optional<TaskId>>{
                                              std::nullopt, TaskId(size_t{0}), TaskId(size_t{1})}));
  EXPECT_EQ(text_of(rearrange(follower, follow_order(leader, order, follower), {})),
            add("d", "c", kFirst) + add("d", "a", kSecond) + add("d", "b", kFirst));
}

TEST(FollowOrder, RunsWhatTheLeaderLacksBehindWhatItNeeds) {
  const Program leader = program_of(add("d", "a", kFirst) + add("d", "b", kSecond));
  const Program follower =
      program_of(add("d", "a", kFirst) + add("a", "c", kFirst) + add("d", "b", kSecond));
  const std::vector<TaskId> order = {TaskId(size_t{1}), TaskId(size_t{0})};
  EXPECT_EQ(text_of(rearrange(follower, follow_order(leader, order, follower), {})),
            add("d", "b", kSecond) + add("d", "a", kFirst) + add("a", "c", kFirst));
}

// The follower's second task needs its first, which the leader runs later.
TEST(FollowOrder, WaitsForWhatATaskDependsOn) {
  const Program leader = program_of(add("d", "a", kFirst) + add("d", "b", kSecond));
  const Program follower = program_of(add("d", "a", kFirst) + add("a", "b", kSecond));
  const std::vector<TaskId> order = {TaskId(size_t{1}), TaskId(size_t{0})};
  EXPECT_EQ(text_of(rearrange(follower, follow_order(leader, order, follower), {})),
            add("d", "a", kFirst) + add("a", "b", kSecond));
}

/// Tasks in any order that dependencies allow.
std::vector<TaskId> random_order(const Program& program, std::mt19937& random) {
  const DependencyGraph dependencies = build_dependencies(program);
  std::vector<TaskId> order;
  std::vector<bool> is_in(program.tasks.size());
  while (order.size() < is_in.size()) {
    const TaskId task(random() % is_in.size());
    const auto earlier = dependencies.of(task);
    if (!is_in[task.index()] &&
        std::all_of(earlier.begin(), earlier.end(), [&](TaskId it) { return is_in[it.index()]; })) {
      is_in[task.index()] = true;
      order.push_back(task);
    }
  }
  return order;
}

TEST(FollowOrder, IsThatOfTheLeaderForTheSameProgram) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const Program program = random_program(seed);
    const auto same = same_tasks(program, program);
    for (size_t i = 0; i < same.size(); ++i) {
      ASSERT_EQ(same[i], TaskId(i));
    }
    const std::vector<TaskId> order = random_order(program, random);
    EXPECT_EQ(follow_order(program, order, program), order);
  }
}

TEST(FollowEngines, LeavesTasksThatTheLeaderLacks) {
  const Program leader = program_of(add("d", "a", kFirst) + add("d", "b", kSecond));
  const Program follower =
      program_of(add("d", "a", kFirst) + add("d", "c", kFirst) + add("d", "b", kSecond));
  const std::vector<TaskEngine> engines = {TaskEngine::kCopy, TaskEngine::kSm};
  EXPECT_EQ(follow_engines(leader, engines, follower),
            (std::vector{TaskEngine::kCopy, TaskEngine::kAsIs, TaskEngine::kSm}));
}

}  // namespace
}  // namespace braid
