#include "passes/pipeline/defer_head_wgrad.h"

#include <gtest/gtest.h>

#include <string>

#include "ir/text.h"
#include "support/symbolic.h"

namespace braid {
namespace {

// The last stage of a pipeline: head and one layer.
const std::string kTables =
    "program step rank=1 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream t kind=comm priority=1\n"
    "group pipeline.backward kind=pipeline ranks=0,1\n"
    "group data kind=data ranks=1\n"
    "buffer head f32 [8] main_grad persistent device\n"
    "buffer g f32 [8] main_grad persistent device\n"
    "buffer y f32 [8] activation persistent device\n"
    "buffer d0 f32 [8] activation persistent device\n"
    "buffer d1 f32 [8] activation persistent device\n"
    "buffer d2 f32 [8] activation persistent device\n";

struct Parts {
  std::string dgrad, head, rest;
};
Parts parts(int microbatch) {
  const std::string mb = " mb=" + std::to_string(microbatch) + " vs=0";
  const std::string d = "d" + std::to_string(microbatch);
  return {.dgrad = "linear_dgrad(y -> " + d + ") s dgrad" + mb + " site=head.logits\n",
          .head = "linear_wgrad(" + d + " -> rw head) s wgrad" + mb + " site=head.logits\n",
          .rest = "linear_wgrad(" + d + " -> rw g) s wgrad" + mb + " layer=3 site=fc\n" + "send(" +
                  d + ") {group=0, peer=0, channel=0} t comm" + mb + "\n"};
}
std::string step(int num_microbatches) {
  std::string text;
  for (int m = 0; m < num_microbatches; ++m) {
    text += parts(m).dgrad + parts(m).head + parts(m).rest;
  }
  return text;
}

PassResult defer(const std::string& tasks, int64_t limit = 0) {
  const Program program = parse_program(kTables + tasks);
  const DeferHeadWgradOptions options{.enabled = true, .limit = limit};
  PassResult result = defer_head_wgrad(program, options);
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  EXPECT_EQ(result.report.changed, !(result.program == program));
  const PassResult again = defer_head_wgrad(result.program, options);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}
std::string tasks_of(const PassResult& result) {
  return print_program(result.program).substr(kTables.size());
}

const std::string kUpdate = "adamw(head -> rw y) s optimizer\n";

TEST(DeferHeadWgrad, OfAllMicrobatchesGoBehindTheLastBackward) {
  const PassResult result = defer(step(3) + kUpdate);
  EXPECT_EQ(tasks_of(result), parts(0).dgrad + parts(0).rest + parts(1).dgrad + parts(1).rest +
                                  parts(2).dgrad + parts(2).rest + parts(0).head + parts(1).head +
                                  parts(2).head + kUpdate);
  EXPECT_EQ(result.report.num_changes, 3);
  EXPECT_EQ(result.report.summary,
            "moved 3 of 3 weight gradients of the head behind the last backward");
}

TEST(DeferHeadWgrad, ALimitTakesTheLastMicrobatchesSoThatSumsKeepTheirOrder) {
  EXPECT_EQ(tasks_of(defer(step(3), 2)), parts(0).dgrad + parts(0).head + parts(0).rest +
                                             parts(1).dgrad + parts(1).rest + parts(2).dgrad +
                                             parts(2).rest + parts(1).head + parts(2).head);
  EXPECT_EQ(defer(step(3), 9).program, defer(step(3)).program);
}

TEST(DeferHeadWgrad, ReductionsOfEachMicrobatchFollow) {
  const std::string reduce = "all_reduce(-> rw head) {group=1} s comm site=head\n";
  const Parts first = parts(0);
  const Parts second = parts(1);
  EXPECT_EQ(tasks_of(defer(first.dgrad + first.head + first.rest + reduce + second.dgrad +
                           second.head + second.rest + reduce)),
            first.dgrad + first.rest + second.dgrad + second.rest + first.head + reduce +
                second.head + reduce);
}

TEST(DeferHeadWgrad, LeavesOtherStagesAndSingleStagesAlone) {
  const std::string layer =
      "linear_wgrad(d0 -> rw g) s wgrad mb=0 vs=0 layer=3 site=fc\n"
      "send(d0) {group=0, peer=0, channel=0} t comm mb=0 vs=0\n";
  EXPECT_FALSE(defer(layer).report.changed);
  const std::string one_stage = parts(0).dgrad + parts(0).head +
                                "linear_wgrad(d0 -> rw g) s wgrad mb=0 vs=0 layer=3 site=fc\n";
  EXPECT_FALSE(defer(one_stage).report.changed);
}

TEST(DeferHeadWgrad, WhatTheBackwardNeedsStays) {
  const PassResult result = defer(parts(0).dgrad + parts(0).head +
                                  "norm(head -> d1) s dgrad mb=0 vs=0\n" + parts(0).rest);
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(
      result.report.summary,
      "moved 0 of 1 weight gradients of the head behind the last backward; 1 stay, because an "
      "earlier task needs them");
}

TEST(DeferHeadWgrad, IsOffByDefault) {
  const Program program = parse_program(kTables + step(2));
  EXPECT_EQ(defer_head_wgrad(program).program, program);
}

}  // namespace
}  // namespace braid
