#include "ops/meets_others.h"

#include <gmock/gmock.h>

#include "ir/text.h"

namespace braid {
namespace {

TEST(MeetsOthers, IsWhatTasksOfSeveralRanksDo) {
  const Program program = parse_program(
      "program step rank=0 ranks=4 events=0\n"
      "stream compute kind=compute priority=0\n"
      "group tensor kind=tensor ranks=0,1\n"
      "group alone kind=context ranks=0\n"
      "buffer x f32 [6] activation persistent device\n"
      "buffer y f32 [6] activation persistent device\n"
      "copy(x -> y) compute forward\n"
      "all_reduce(-> rw y) {group=0} compute comm layer=0\n"
      "all_reduce(-> rw y) {group=1} compute comm\n"
      "all_reduce(-> rw x) {group=0} compute comm layer=1\n");
  EXPECT_THAT(tasks_that_meet_others(program), ::testing::ElementsAre(false, true, false, true));
  EXPECT_TRUE(meets_others(program, program.tasks[1]));
  EXPECT_FALSE(meets_others(program, program.tasks[2]));
}

}  // namespace
}  // namespace braid
