#include "passes/pipeline/late_moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <span>
#include <string>

#include "base/expect_error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "support/random_program.h"
#include "support/symbolic.h"

namespace braid {
namespace {

using ::testing::IsEmpty;

const std::string kTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "buffer g f32 [8] main_grad persistent device\n"
    "buffer h f32 [8] main_grad persistent device\n"
    "buffer x f32 [8] activation persistent device\n"
    "buffer y f32 [8] activation persistent device\n";

struct Moved {
  std::string tasks;
  PassReport report;
};

Moved move(const std::string& tasks, std::span<const LateMove> moves) {
  const Program program = parse_program(kTables + tasks);
  const PassResult result = move_late(program, moves, "tasks");
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  return {print_program(result.program).substr(kTables.size()), result.report};
}

TEST(LateMoves, MovesBehindTheTaskInOrder) {
  const std::array moves = {LateMove{TaskId(1), TaskId(3)}, LateMove{TaskId(0), TaskId(3)}};
  const Moved moved = move(
      "wgrad(x -> rw g) s wgrad layer=1\n"
      "wgrad(x -> rw h) s wgrad layer=0\n"
      "dgrad(x -> y) s dgrad\n"
      "send(y) s comm\n"
      "next() s forward\n",
      moves);
  EXPECT_EQ(moved.tasks,
            "dgrad(x -> y) s dgrad\n"
            "send(y) s comm\n"
            "wgrad(x -> rw g) s wgrad layer=1\n"
            "wgrad(x -> rw h) s wgrad layer=0\n"
            "next() s forward\n");
  EXPECT_TRUE(moved.report.changed);
  EXPECT_EQ(moved.report.num_changes, 2);
  EXPECT_EQ(moved.report.summary, "moved 2 tasks");
}

TEST(LateMoves, TakesGradientsThatDependOnItAlong) {
  const std::array moves = {LateMove{TaskId(0), TaskId(4)}};
  const Moved moved = move(
      "wgrad(x -> rw g) s wgrad mb=0\n"
      "reduce(-> rw g) s comm mb=0\n"
      "dgrad(x -> y) s dgrad\n"
      "add(g -> rw h) s wgrad\n"
      "wgrad(x -> rw h) s wgrad mb=1\n",
      moves);
  // Also the last one: it adds to h after `add` does, and its target is its own place.
  EXPECT_EQ(moved.tasks,
            "dgrad(x -> y) s dgrad\n"
            "wgrad(x -> rw g) s wgrad mb=0\n"
            "reduce(-> rw g) s comm mb=0\n"
            "add(g -> rw h) s wgrad\n"
            "wgrad(x -> rw h) s wgrad mb=1\n");
  EXPECT_EQ(moved.report.num_changes, 1);
}

TEST(LateMoves, WhatOthersNeedBeforeStays) {
  const std::string tasks =
      "wgrad(x -> rw g) s wgrad\n"
      "wgrad(x -> rw h) s wgrad\n"
      "reduce(-> rw g) s comm\n"
      "norm(g -> y) s dgrad\n"
      "end() s forward\n";
  const std::array both = {LateMove{TaskId(0), TaskId(4)}, LateMove{TaskId(1), TaskId(4)}};
  const Moved moved = move(tasks, both);
  EXPECT_EQ(moved.report.num_changes, 1);
  EXPECT_EQ(moved.report.summary, "moved 1 tasks; 1 stay, because an earlier task needs them");
  EXPECT_EQ(moved.tasks,
            "wgrad(x -> rw g) s wgrad\n"
            "reduce(-> rw g) s comm\n"
            "norm(g -> y) s dgrad\n"
            "end() s forward\n"
            "wgrad(x -> rw h) s wgrad\n");
  // The task after which it should move reads its result.
  const std::array behind_its_reader = {LateMove{TaskId(0), TaskId(3)}};
  EXPECT_EQ(move(tasks, behind_its_reader).report.summary,
            "moved 0 tasks; 1 stay, because an earlier task needs them");
  EXPECT_EQ(move(tasks, behind_its_reader).tasks, tasks);
}

TEST(LateMoves, MessagesDoNotMoveAlong) {
  const std::array moves = {LateMove{TaskId(0), TaskId(2)}};
  const Moved moved = move("wgrad(x -> rw g) s wgrad\nsend(g) s comm\nend() s forward\n", moves);
  EXPECT_FALSE(moved.report.changed);
  EXPECT_EQ(moved.report.summary, "moved 0 tasks; 1 stay, because an earlier task needs them");
}

TEST(LateMoves, WithoutMovesTheOrderIsThatOfTheProgram) {
  const Moved moved = move("a() s forward\nb() s forward\n", {});
  EXPECT_EQ(moved.tasks, "a() s forward\nb() s forward\n");
  EXPECT_FALSE(moved.report.changed);
  EXPECT_EQ(moved.report.num_changes, 0);
}

TEST(LateMoves, RefusesWhatIsNoMove) {
  const Program program = parse_program(kTables + "w() s wgrad\nd() s dgrad\nw() s wgrad\n");
  for (const LateMove& wrong : {LateMove{TaskId(0), TaskId(0)}, LateMove{TaskId(2), TaskId(1)},
                                LateMove{TaskId(1), TaskId(2)}, LateMove{TaskId(0), TaskId(9)}}) {
    EXPECT_THROW(move_late(program, std::span(&wrong, 1), "tasks"), InternalError);
  }
}

TEST(LateMoves, KeepTheMeaningOfRandomPrograms) {
  for (uint64_t seed = 0; seed < 500 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Program program = random_program(seed, {.num_tasks = 30, .num_buffers = 6});
    std::mt19937_64 random(seed);
    std::vector<LateMove> moves;
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      program.tasks[i].label.phase = random() % 3 == 0 ? Phase::kWgrad : Phase::kForward;
      if (program.tasks[i].label.phase == Phase::kWgrad && i + 1 < program.tasks.size() &&
          random() % 2 == 0) {
        moves.push_back({TaskId(i), TaskId(i + 1 + random() % (program.tasks.size() - i - 1))});
      }
    }
    const PassResult result = move_late(program, moves, "tasks");
    EXPECT_LE(result.report.num_changes, static_cast<int64_t>(moves.size()));
    EXPECT_EQ(run_in_order(result.program), run_in_order(program));
    EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  }
}

}  // namespace
}  // namespace braid
