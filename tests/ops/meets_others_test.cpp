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

TEST(MeetsOthers, MessagesAreSentOrReceived) {
  const std::string head =
      "program step rank=0 ranks=4 events=0\n"
      "stream compute kind=compute priority=0\n"
      "group pipeline.forward kind=pipeline ranks=0,2\n"
      "group alone kind=context ranks=0\n"
      "buffer x f32 [6] activation persistent device\n";
  const auto exchanges = [&](const std::string& task) {
    return exchanges_messages(parse_program(head + task));
  };
  EXPECT_TRUE(exchanges("send(x [6]) {group=0, peer=1, channel=1} compute comm\n"));
  EXPECT_TRUE(exchanges("recv(-> x [6]) {group=0, peer=1, channel=1} compute comm\n"));
  EXPECT_FALSE(exchanges("all_reduce(-> rw x) {group=0} compute comm\n"));
  EXPECT_FALSE(exchanges("undefine(-> x) compute forward\n"));
}

}  // namespace
}  // namespace braid
