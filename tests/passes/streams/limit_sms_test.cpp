#include "passes/streams/limit_sms.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace braid {
namespace {

std::string text(const std::string& stream, const std::string& dp, const std::string& tp) {
  return "program step rank=0 ranks=2 events=0\n"
         "stream compute kind=compute priority=0" +
         stream +
         "\n"
         "stream comm.data kind=comm priority=1\n"
         "group dp kind=data ranks=0,1" +
         dp +
         "\n"
         "group tp kind=tensor ranks=0,1" +
         tp +
         "\n"
         "buffer x f32 [8] activation persistent device\n"
         "norm(-> x) compute forward\n"
         "all_reduce(-> rw x) {group=1} compute comm\n";
}

TEST(LimitSms, NotesTheNumbersOfGroupsAndComputeStreams) {
  const PassResult result = limit_sms(
      parse_program(text("", "", "")),
      {.comm_sms = {{GroupKind::kTensor, 8}, {GroupKind::kContext, 4}}, .product_margin = 12});
  EXPECT_EQ(print_program(result.program), text(" left_sms=12", "", " max_sms=8"));
  EXPECT_EQ(result.report.num_changes, 2);
  EXPECT_EQ(result.report.summary, "limited 1 groups; products leave 12 multiprocessors");
}

TEST(LimitSms, ChangesNothingWithoutABudget) {
  const PassResult result = limit_sms(parse_program(text("", "", "")), {});
  EXPECT_EQ(print_program(result.program), text("", "", ""));
  EXPECT_FALSE(result.report.changed);
}

/// What was printed is read again.
TEST(LimitSms, NumbersAreInTheTextOfAProgram) {
  const std::string limited = text(" left_sms=3", " max_sms=64", " max_sms=1");
  const Program program = parse_program(limited);
  EXPECT_EQ(program.streams[0].left_sms, 3);
  EXPECT_EQ(program.groups[0].max_sms, 64);
  EXPECT_EQ(print_program(program), limited);
  EXPECT_FALSE(program == parse_program(text("", " max_sms=64", " max_sms=1")));
}

}  // namespace
}  // namespace braid
