#include "passes/pipeline/delay_wgrad.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ir/text.h"
#include "support/symbolic.h"

namespace braid {
namespace {

// A middle stage of a pipeline of three, with the backward of layers 3, 2 and 1.
const std::string kTables =
    "program step rank=1 ranks=3 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream t kind=comm priority=1\n"
    "group pipeline.backward kind=pipeline ranks=0,1,2\n"
    "buffer g3 f32 [8] main_grad persistent device\n"
    "buffer g2 f32 [8] main_grad persistent device\n"
    "buffer g1 f32 [8] main_grad persistent device\n"
    "buffer n1 f32 [8] main_grad persistent device\n"
    "buffer d f32 [16] activation persistent device\n";

/// Backward of one layer of a microbatch: dgrad and wgrad of a matrix of each part.
std::string backward(int microbatch, int layer) {
  std::string text;
  for (const bool is_mlp : {true, false}) {
    const std::string place = fmt::format("mb={} vs=0 layer={} site=layers.{}.{}.fc\n", microbatch,
                                          layer, layer, is_mlp ? "mlp" : "attention");
    const int begin = layer * 4 + (is_mlp ? 0 : 2);  // what the dgrad makes, for the wgrad
    const std::string made = fmt::format("d[{}:{}]", begin, begin + 2);
    text += fmt::format("dgrad(-> rw {}) s dgrad {}", made, place);
    text += fmt::format("wgrad({} -> rw g{}{}) s wgrad {}", made, layer, is_mlp ? "[0:4]" : "[4:8]",
                        place);
  }
  return text;
}
std::string send(int microbatch) {
  return "send(d) {group=0, peer=0, channel=0} t comm mb=" + std::to_string(microbatch) + " vs=0\n";
}
std::string step(int microbatch) {
  return backward(microbatch, 3) + backward(microbatch, 2) + backward(microbatch, 1) +
         send(microbatch);
}

/// "dgrad 1a" is that of attention in layer 1, "wgrad 1m" one of its feed-forward.
std::vector<std::string> names_of(const Program& program) {
  std::vector<std::string> names;
  for (const Task& task : program.tasks) {
    std::string name = program.spec(task).op;
    if (task.label.layer >= 0) {
      const bool is_mlp = task.label.site.valid() &&
                          program.sites[task.label.site.index()].find("mlp") != std::string::npos;
      name += " " + std::to_string(task.label.layer) + (is_mlp ? "m" : "a");
    }
    names.push_back(name);
  }
  return names;
}

PassResult delay(const std::string& tasks, const DelayWgradOptions& options) {
  const Program program = parse_program(kTables + tasks);
  PassResult result = delay_wgrad(program, options);
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  EXPECT_EQ(result.report.changed, !(result.program == program));
  const PassResult again = delay_wgrad(result.program, options);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

using Names = std::vector<std::string>;

TEST(DelayWgrad, OfTheLastLayerHidesTheMessage) {
  const PassResult result = delay(step(0), {.num_layers = 1, .whole_layers = true});
  EXPECT_EQ(
      names_of(result.program),
      (Names{"dgrad 3m", "wgrad 3m", "dgrad 3a", "wgrad 3a", "dgrad 2m", "wgrad 2m", "dgrad 2a",
             "wgrad 2a", "dgrad 1m", "dgrad 1a", "send", "wgrad 1m", "wgrad 1a"}));
  EXPECT_EQ(result.report.num_changes, 2);
  EXPECT_EQ(result.report.summary, "moved 2 weight gradients behind 1 backward messages");
}

TEST(DelayWgrad, OfAttentionAlone) {
  EXPECT_EQ(
      names_of(delay(step(0), {.num_layers = 2, .whole_layers = false}).program),
      (Names{"dgrad 3m", "wgrad 3m", "dgrad 3a", "wgrad 3a", "dgrad 2m", "wgrad 2m", "dgrad 2a",
             "dgrad 1m", "wgrad 1m", "dgrad 1a", "send", "wgrad 2a", "wgrad 1a"}));
}

TEST(DelayWgrad, MoreLayersThanThereAreIsAll) {
  const PassResult all = delay(step(0), {.num_layers = 3});
  EXPECT_EQ(names_of(all.program),
            (Names{"dgrad 3m", "dgrad 3a", "dgrad 2m", "dgrad 2a", "dgrad 1m", "dgrad 1a", "send",
                   "wgrad 3m", "wgrad 3a", "wgrad 2m", "wgrad 2a", "wgrad 1m", "wgrad 1a"}));
  EXPECT_EQ(delay(step(0), {.num_layers = 7}).program, all.program);
}

// A stage may have the head and no layer.
TEST(DelayWgrad, TheHeadCountsAsTheLastLayer) {
  const std::string head =
      "head_dgrad(-> rw d) s dgrad mb=0 vs=0 site=head.logits\n"
      "head_wgrad(d[0:2] -> rw g3) s wgrad mb=0 vs=0 site=head.logits\n"
      "norm_dgrad(-> rw d[2:4]) s dgrad mb=0 vs=0 site=head.norm\n";
  EXPECT_EQ(names_of(delay(head + send(0), {.num_layers = 1}).program),
            (Names{"head_dgrad", "norm_dgrad", "send", "head_wgrad"}));
  EXPECT_FALSE(delay(head + send(0), {.num_layers = 1, .whole_layers = false}).report.changed);
  const std::string layer_too = head + backward(0, 1) + send(0);
  EXPECT_EQ(names_of(delay(layer_too, {.num_layers = 1}).program),
            (Names{"head_dgrad", "head_wgrad", "norm_dgrad", "dgrad 1m", "dgrad 1a", "send",
                   "wgrad 1m", "wgrad 1a"}));
  EXPECT_EQ(names_of(delay(layer_too, {.num_layers = 2}).program),
            (Names{"head_dgrad", "norm_dgrad", "dgrad 1m", "dgrad 1a", "send", "head_wgrad",
                   "wgrad 1m", "wgrad 1a"}));
}

TEST(DelayWgrad, OfNoLayerChangesNothing) {
  EXPECT_FALSE(delay(step(0), {.num_layers = 0}).report.changed);
  EXPECT_EQ(delay(step(0), {.num_layers = 0}).report.summary,
            "moved 0 weight gradients behind 1 backward messages");
}

// As at the end of a step, where backwards follow each other: each job keeps its own, and a
// gradient gets its addends in the order of microbatches.
TEST(DelayWgrad, KeepsTheOrderOfMicrobatchesInTheCooldown) {
  const PassResult result = delay(step(0) + step(1), {.num_layers = 3});
  std::vector<int> microbatches;
  for (const Task& task : result.program.tasks) {
    if (task.label.phase == Phase::kWgrad) {
      microbatches.push_back(task.label.microbatch);
    }
  }
  EXPECT_EQ(microbatches, (std::vector<int>{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(result.report.num_changes, 12);
}

TEST(DelayWgrad, LeavesJobsThatSendNothingBackAlone) {
  const std::string forward_message =
      "linear(-> rw d) s forward mb=0 vs=0 layer=1\n"
      "send(d) {group=0, peer=2, channel=0} t comm mb=0 vs=0\n";
  const std::string first_stage = forward_message + backward(0, 3) + backward(0, 1);
  EXPECT_FALSE(delay(first_stage, {.num_layers = 2}).report.changed);
}

// zb-h1 and similar schedules: the weight gradients are a separate job after the message.
TEST(DelayWgrad, LeavesSplitBackwardsAsTheyAre) {
  const std::string split = "dgrad(-> rw d) s dgrad mb=0 vs=0 layer=1\n" + send(0) +
                            "next(-> rw d) s forward mb=1 vs=0\n"
                            "wgrad(d -> rw g1) s wgrad mb=0 vs=0 layer=1\n";
  EXPECT_FALSE(delay(split, {.num_layers = 2}).report.changed);
}

TEST(DelayWgrad, WhatTheMessageNeedsStays) {
  const PassResult result = delay(
      "wgrad(d -> rw g1) s wgrad mb=0 vs=0 layer=1\n"
      "wgrad(d -> rw g2) s wgrad mb=0 vs=0 layer=1\n"
      "dgrad(g1 -> rw d[0:4]) s dgrad mb=0 vs=0 layer=1\n" +
          send(0),
      {.num_layers = 1});
  // The second one reads what the dgrad overwrites.
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(result.report.summary,
            "moved 0 weight gradients behind 1 backward messages; 2 stay, because an earlier task "
            "needs them");
}

TEST(DelayWgrad, WhatReducesAGradientFollowsIt) {
  const PassResult result = delay(
      "dgrad(-> rw n1) s dgrad mb=0 vs=0 layer=1\n"
      "wgrad(d -> rw g1) s wgrad mb=0 vs=0 layer=1\n"
      "all_reduce(-> rw g1) s comm layer=1\n" +
          send(0),
      {.num_layers = 1});
  EXPECT_EQ(names_of(result.program), (Names{"dgrad 1a", "send", "wgrad 1a", "all_reduce 1a"}));
}

}  // namespace
}  // namespace braid
