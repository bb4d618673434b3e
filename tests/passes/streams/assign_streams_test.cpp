#include "passes/streams/assign_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/text.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

const std::string kStreams =
    "program step rank=0 ranks=2 events=0\n"
    "stream compute kind=compute priority=0\n";
const std::string kTables =
    "group dp kind=data ranks=0,1\n"
    "group tp kind=tensor ranks=0,1\n"
    "group dp2 kind=data ranks=0,1\n"
    "buffer x f32 [8] activation persistent device\n"
    "buffer a f32 [8] activation step device\n"
    "buffer w f32 [8] gathered step device\n";

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

TEST(AssignStreams, LeavesWhatTouchesShortLivedMemory) {
  const std::string text = kStreams + kTables +
                           "norm(-> a) compute forward\n"
                           "all_reduce(-> rw a) {group=1} compute comm\n"
                           "all_gather(x -> w) {group=0} compute comm\n"
                           "recv(-> a) {group=0} compute comm\n";
  const PassResult result = assign_streams(parse_program(text), {});
  EXPECT_EQ(print_program(result.program), text);
  EXPECT_EQ(result.report.summary, "moved 0 of 3 communication tasks to streams of their own");
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

/// A gather that compute does not wait for at once, so that its group is worth a stream.
const std::string kBeside =
    "undefine(-> w) compute forward\n"
    "all_gather(x -> w) {group=0} compute comm\n"
    "norm(-> a) compute forward\n";

TEST(AssignStreams, AGroupThatRunsBesideComputeTakesShortLivedMemoryAlong) {
  const std::string use = "use(w -> x) compute forward\n";
  const PassResult result = assign_streams(parse_program(kStreams + kTables + kBeside + use), {});
  EXPECT_EQ(print_program(result.program), kStreams + "stream comm.data kind=comm priority=1\n" +
                                               kTables +
                                               "undefine(-> w) compute forward\n"
                                               "all_gather(x -> w) {group=0} comm.data comm\n"
                                               "norm(-> a) compute forward\n" +
                                               use);
}

// One call of the communicator hides nothing, but must not be on another stream than the rest.
TEST(AssignStreams, HandsMemoryOverWhereNoPassHas) {
  const std::string kOther =
      "buffer b f32 [8] grad step device\n"
      "buffer c f32 [8] activation step device\n";
  const PassResult result =
      assign_streams(parse_program(kStreams + kTables + kOther + kBeside +
                                   "wgrad(-> b) compute wgrad mb=0\n"
                                   "reduce_scatter(b -> c) {group=0} compute comm\n"
                                   "use(w, c -> x) compute dgrad mb=1\n"),
                     {});
  const std::string text = print_program(result.program);
  EXPECT_EQ(text.substr(text.find("wgrad(-> b)")),
            "wgrad(-> b) compute wgrad mb=0\n"
            "undefine(-> c) compute dgrad mb=1\n"
            "reduce_scatter(b -> c) {group=0} comm.data comm\n"
            "undefine(-> b) compute dgrad mb=1\n"
            "use(w, c -> x) compute dgrad mb=1\n");
}

TEST(AssignStreams, WhatAddsUpGradientsFollowsTheirCommunication) {
  const std::string kGradients =
      "buffer g f32 [8] grad step device\n"
      "buffer r f32 [8] grad step device\n"
      "buffer m f32 [8] main_grad step device\n";
  const PassResult result =
      assign_streams(parse_program(kStreams + kTables + kGradients +
                                   "undefine(-> m) compute wgrad\n"
                                   "wgrad(-> g) compute wgrad\n"
                                   "cast(g -> r) compute wgrad\n"
                                   "reduce_scatter(r -> m) {group=0} compute comm\n"
                                   "accumulate(r -> rw m) compute wgrad\n"
                                   "norm(-> x) compute dgrad\n"
                                   "undefine(-> r) compute dgrad\n"
                                   "adamw(m -> rw x) compute optimizer\n"),
                     {});
  const std::string text = print_program(result.program);
  EXPECT_EQ(text.substr(text.find("wgrad(-> g)")),
            "wgrad(-> g) compute wgrad\n"
            "cast(g -> r) compute wgrad\n"
            "reduce_scatter(r -> m) {group=0} comm.data comm\n"
            "accumulate(r -> rw m) comm.data wgrad\n"
            "norm(-> x) compute dgrad\n"
            "undefine(-> r) compute dgrad\n"
            "adamw(m -> rw x) compute optimizer\n");
}

// A sum over replicas of shards is rounded before and widened after it.
TEST(AssignStreams, WhatRoundsBetweenTwoSumsFollowsTheFirst) {
  const std::string tables =
      "buffer g f32 [8] grad step device\n"
      "buffer m f32 [8] main_grad step device\n"
      "buffer n f32 [8] grad step device\n";
  const PassResult result =
      assign_streams(parse_program(kStreams + kTables + tables +
                                   "undefine(-> m) compute wgrad\n"
                                   "undefine(-> n) compute wgrad\n"
                                   "wgrad(-> g) compute wgrad\n"
                                   "reduce_scatter(g -> m) {group=0} compute comm\n"
                                   "accumulate(g -> rw m) compute wgrad\n"
                                   "cast(m -> n) compute wgrad\n"
                                   "all_reduce(rw n) {group=0} compute comm\n"
                                   "cast(n -> m) compute wgrad\n"
                                   "norm(-> x) compute dgrad\n"
                                   "adamw(m -> rw x) compute optimizer\n"),
                     {});
  const std::string text = print_program(result.program);
  EXPECT_THAT(text, HasSubstr("\ncast(m -> n) comm.data wgrad\n"));
  EXPECT_THAT(text, HasSubstr("\ncast(n -> m) comm.data wgrad\n"));
}

TEST(AssignStreams, ContextRanksComeFirst) {
  const std::string kRing = "group cp kind=context ranks=0,1\n";
  const PassResult result = assign_streams(
      parse_program(kStreams + kTables + kRing + "ring_shift(x -> x) {group=3} compute comm\n"),
      {});
  EXPECT_EQ(result.program.streams.back(), (Stream{"comm.context", StreamKind::kComm, 2}));
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

// The gathers of the group run beside compute, its reductions do not, or the other way round.
TEST(AssignStreams, LetsComputeAndWhatMustNotOverlapWaitForEachOther) {
  const std::string tables =
      "group dp kind=data ranks=0,1\n"
      "buffer g f32 [8] main_grad persistent device\n"
      "buffer s f32 [4] param persistent device\n"
      "buffer w f32 [8] param persistent device\n"
      "buffer x f32 [8] activation persistent device\n";
  const std::string reduce = "all_reduce(-> rw g) {group=0} ";
  const std::string gather = "all_gather(s -> w) {group=0} ";
  const std::string compute = "norm(-> x) compute forward\n";
  const Program program =
      parse_program(kStreams + tables + compute + reduce + "compute comm\n" + reduce +
                    "compute comm\n" + compute + gather + "compute comm\n");
  const std::string streams = kStreams + "stream comm.data kind=comm priority=1\n" + tables;
  EXPECT_EQ(print_program(assign_streams(program, {.gradients_block = true}).program),
            streams + compute + "await(x) comm.data comm\n" + reduce + "comm.data comm\n" + reduce +
                "comm.data comm\n" + "await(g) compute comm\n" + compute + gather +
                "comm.data comm\n");
  EXPECT_EQ(print_program(assign_streams(program, {.parameters_block = true}).program),
            streams + compute + reduce + "comm.data comm\n" + reduce + "comm.data comm\n" +
                compute + "await(x) comm.data comm\n" + gather + "comm.data comm\n" +
                "await(w) compute comm\n");
}

}  // namespace
}  // namespace braid
