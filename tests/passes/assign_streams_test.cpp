#include "passes/assign_streams.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace braid {
namespace {

const std::string kStreams =
    "program step rank=0 ranks=2 events=0\n"
    "stream compute kind=compute priority=0\n";
const std::string kTables =
    "group dp kind=data ranks=0,1\n"
    "group tp kind=tensor ranks=0,1\n"
    "group dp2 kind=data ranks=0,1\n"
    "buffer x f32 [8] activation persistent device\n";

TEST(AssignStreams, MakesAStreamPerKindOfGroup) {
  const std::string tasks =
      "norm(-> x) compute forward\n"
      "all_reduce(-> rw x) {group=1} compute comm\n"
      "all_reduce(-> rw x) {group=0} compute comm\n"
      "all_reduce(-> rw x) {group=2} compute comm\n"
      "send(x) {peer=1} compute comm\n"
      "all_reduce(-> rw x) {group=0} compute optimizer\n";
  const PassResult result = assign_streams(parse_program(kStreams + kTables + tasks), {});
  EXPECT_EQ(print_program(result.program), kStreams +
                                               "stream comm.tensor kind=comm priority=1\n"
                                               "stream comm.data kind=comm priority=1\n"
                                               "stream comm kind=comm priority=1\n" +
                                               kTables +
                                               "norm(-> x) compute forward\n"
                                               "all_reduce(-> rw x) {group=1} comm.tensor comm\n"
                                               "all_reduce(-> rw x) {group=0} comm.data comm\n"
                                               "all_reduce(-> rw x) {group=2} comm.data comm\n"
                                               "send(x) {peer=1} comm comm\n"
                                               "all_reduce(-> rw x) {group=0} compute optimizer\n");
  EXPECT_EQ(result.report.num_changes, 4);
  EXPECT_EQ(result.report.summary, "moved 4 of 4 communication tasks to streams of their own");
}

TEST(AssignStreams, UsesStreamsThatAreThere) {
  const std::string text = kStreams +
                           "stream comm.data kind=comm priority=7\n"
                           "stream comm.tensor kind=copy priority=0\n" +
                           kTables + "all_reduce(-> rw x) {group=0} comm.data comm\n";
  const PassResult same = assign_streams(parse_program(text), {});
  EXPECT_EQ(print_program(same.program), text);
  EXPECT_FALSE(same.report.changed);
  // A stream of another kind is not taken for a communication stream.
  const PassResult made = assign_streams(
      parse_program(text + "all_reduce(-> rw x) {group=1} compute comm\n"), {.comm_priority = 3});
  ASSERT_EQ(made.program.streams.size(), 4u);
  EXPECT_EQ(made.program.streams[3], (Stream{"comm.tensor", StreamKind::kComm, 3}));
}

TEST(AssignStreams, DropsEventsThatNoLongerFit) {
  const std::string text =
      "program step rank=0 ranks=2 events=1\n"
      "stream compute kind=compute priority=0\n" +
      kTables + "norm(-> x) compute forward record=e0\n";
  EXPECT_EQ(assign_streams(parse_program(text), {}).program.num_events, 1u);
  const std::string comm = "all_reduce(-> rw x) {group=0} compute comm wait=e0\n";
  const Program program = assign_streams(parse_program(text + comm), {}).program;
  EXPECT_EQ(program.num_events, 0u);
  EXPECT_TRUE(program.waits.empty());
}

}  // namespace
}  // namespace braid
