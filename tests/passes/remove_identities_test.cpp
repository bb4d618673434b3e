#include "passes/remove_identities.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace braid {
namespace {

const char* const kHeader =
    "program step rank=0 ranks=2 events=0\n"
    "stream compute kind=compute priority=0\n"
    "group alone kind=tensor ranks=0\n"
    "group dp kind=data ranks=0,1\n"
    "buffer x f32 [8] activation persistent device\n"
    "buffer y f32 [8] activation persistent device\n";

TEST(RemoveIdentities, RemovesAllReducesOverOneRankAndCopiesOntoThemselves) {
  const PassResult result = remove_identities(
      parse_program(std::string(kHeader) + "all_reduce(-> rw x) {group=0} compute comm\n"
                                           "all_reduce(-> rw x) {group=1} compute comm\n"
                                           "copy(x -> x) compute forward\n"
                                           "copy(x -> y) compute forward\n"
                                           "copy(x[0:4] -> x[4:8]) compute forward\n"
                                           "copy(x[2:4] -> x[2:4]) compute forward\n"
                                           "scale(x -> x) compute forward\n"));
  EXPECT_EQ(print_program(result.program), std::string(kHeader) +
                                               "all_reduce(-> rw x) {group=1} compute comm\n"
                                               "copy(x -> y) compute forward\n"
                                               "copy(x[0:4] -> x[4:8]) compute forward\n"
                                               "scale(x -> x) compute forward\n");
  EXPECT_TRUE(result.report.changed);
  EXPECT_EQ(result.report.num_changes, 3);
  EXPECT_EQ(result.report.summary, "removed 3 of 7 tasks");
}

TEST(RemoveIdentities, LeavesOtherProgramsAsTheyAre) {
  const std::string text = std::string(kHeader) + "copy(x -> y) compute forward\n";
  const PassResult result = remove_identities(parse_program(text));
  EXPECT_EQ(print_program(result.program), text);
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(result.report.num_changes, 0);
}

TEST(RemoveIdentities, LeavesEventsOnlyWhereItRemovesNothing) {
  std::string text = std::string(kHeader) + "copy(x -> y) compute forward record=e0\n";
  text.replace(text.find("events=0"), 8, "events=1");
  EXPECT_EQ(remove_identities(parse_program(text)).program.num_events, 1u);
  EXPECT_EQ(
      remove_identities(parse_program(text + "copy(x -> x) compute forward\n")).program.num_events,
      0u);
}

}  // namespace
}  // namespace braid
