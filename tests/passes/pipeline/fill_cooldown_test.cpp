#include "passes/pipeline/fill_cooldown.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ir/text.h"
#include "support/symbolic.h"

namespace braid {
namespace {

using Names = std::vector<std::string>;

// Rank 2 of a pipeline of 4: a layer per virtual stage, layer 2 in virtual stage 0, so that the
// last message passes two layers. Products of dgrad and wgrad take the same arithmetic.
const std::string kTables =
    "program step rank=2 ranks=4 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream t kind=comm priority=1\n"
    "group pipeline.backward kind=pipeline ranks=0,1,2,3\n"
    "group data kind=data ranks=2\n"
    "buffer w f32 [8,8] param persistent device\n"
    "buffer x f32 [4,8] activation persistent device\n"
    "buffer y f32 [4,8] activation persistent device\n"
    "buffer g0 f32 [8,8] main_grad persistent device\n"
    "buffer g1 f32 [8,8] main_grad persistent device\n"
    "buffer h f32 [8,8] main_grad persistent device\n";

std::string buffers(int num_jobs) {
  std::string text;
  for (int i = 0; i < num_jobs; ++i) {
    text += fmt::format("buffer d{} f32 [4,8] activation persistent device\n", i);
  }
  return text;
}

std::string forward(int microbatch, int stage = 0) {
  return fmt::format("linear(x, w -> y) {{has_bias=false}} s forward mb={} vs={} layer={}\n",
                     microbatch, stage, 2 + 4 * stage);
}
std::string dgrad(int microbatch, int stage = 0) {
  return fmt::format(
      "linear_dgrad(x, w -> d{}) {{accumulate=false}} s dgrad mb={} vs={} layer={}\n", microbatch,
      microbatch, stage, 2 + 4 * stage);
}
std::string wgrad(int microbatch, int stage = 0) {
  return fmt::format(
      "linear_wgrad(x, d{} -> rw g{}) {{has_bias=false, accumulate=true}} s wgrad mb={} vs={} "
      "layer={}\n",
      microbatch, stage, microbatch, stage, 2 + 4 * stage);
}
std::string send(int microbatch, int stage = 0) {
  return fmt::format("send(d{}) {{group=0, peer=1, channel=0}} t comm mb={} vs={}\n", microbatch,
                     microbatch, stage);
}
std::string backward(int microbatch, int stage = 0) {
  return dgrad(microbatch, stage) + wgrad(microbatch, stage) + send(microbatch, stage);
}

/// "D1.0" is the dgrad of microbatch 1 in virtual stage 0, W its wgrad, S its message, F a forward.
Names names_of(const Program& program) {
  Names names;
  for (const Task& task : program.tasks) {
    const std::string& op = program.spec(task).op;
    const std::string letter = op == "linear"         ? "F"
                               : op == "linear_dgrad" ? "D"
                               : op == "linear_wgrad" ? "W"
                               : op == "send"         ? "S"
                                                      : op;
    names.push_back(
        fmt::format("{}{}.{}", letter, task.label.microbatch, task.label.virtual_stage));
  }
  return names;
}

PassResult fill(const std::string& tasks, const std::string& tables = kTables + buffers(6),
                const RecomputeOptions& recompute = {}) {
  const Program program = parse_program(tables + tasks);
  PassResult result = fill_cooldown(program, {.recompute = recompute});
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  EXPECT_EQ(result.report.changed, !(result.program == program));
  const PassResult again = fill_cooldown(result.program, {.recompute = recompute});
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

TEST(FillCooldown, KeepsAsManyWeightGradientsAsTheLastMessagePassesLayers) {
  const PassResult result =
      fill(forward(0) + backward(0) + backward(1) + backward(2) + backward(3));
  EXPECT_EQ(names_of(result.program), (Names{"F0.0", "D0.0", "S0.0", "W0.0", "D1.0", "S1.0", "W1.0",
                                             "D2.0", "S2.0", "D3.0", "S3.0", "W2.0", "W3.0"}));
  EXPECT_EQ(result.report.num_changes, 4);
  EXPECT_EQ(result.report.summary, "moved 4 weight gradients into the cool-down");
}

// The last layer's already waits after its message.
TEST(FillCooldown, CountsWhatWaitsAlready) {
  const PassResult result =
      fill(forward(0) + backward(0) + backward(1) + dgrad(2) + send(2) + wgrad(2));
  EXPECT_EQ(names_of(result.program), (Names{"F0.0", "D0.0", "S0.0", "W0.0", "D1.0", "S1.0", "D2.0",
                                             "S2.0", "W1.0", "W2.0"}));
}

// All ranks do the same in the cool-down of interleaved stages: those of the last virtual stage
// wait, which keep the rank from beginning it.
TEST(FillCooldown, OfTheLastVirtualStage) {
  const PassResult result = fill(forward(0, 1) + backward(0, 1) + backward(1, 1) + backward(2, 1) +
                                 backward(3) + backward(4));
  EXPECT_EQ(names_of(result.program),
            (Names{"F0.1", "D0.1", "S0.1", "W0.1", "D1.1", "S1.1", "W1.1", "D2.1", "S2.1", "D3.0",
                   "S3.0", "W3.0", "D4.0", "S4.0", "W2.1", "W4.0"}));
}

// As in 1f1b: the first rank keeps activations of two microbatches more than rank 2.
TEST(FillCooldown, KeepsNoMoreMicrobatchesThanTheFirstRank) {
  std::string tables = kTables + buffers(6);
  const std::string deep = "layer=9";  // nine layers in front
  std::string tasks;
  for (int microbatch = 0; microbatch < 4; ++microbatch) {
    tasks += forward(microbatch) + backward(microbatch);
  }
  for (size_t at = tasks.find("layer=2"); at != std::string::npos; at = tasks.find("layer=2")) {
    tasks.replace(at, deep.size(), deep);
  }
  EXPECT_EQ(names_of(fill(tasks, tables).program),
            (Names{"F0.0", "D0.0", "W0.0", "S0.0", "F1.0", "D1.0", "S1.0", "F2.0", "D2.0", "S2.0",
                   "F3.0", "D3.0", "S3.0", "W1.0", "W2.0", "W3.0"}));
}

/// Buffers of a step: "k" is kept from a forward, the backward makes "r" of it, and "d".
std::string step_buffers(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    for (const char letter : {'k', 'r', 'd'}) {
      text += fmt::format("buffer {}{} f32 [4,8] activation step device\n", letter, name);
    }
  }
  return text;
}
std::string keeping_forward(const std::string& name, int microbatch, int layer) {
  return fmt::format("linear(x, w -> k{}) {{has_bias=false}} s forward mb={} vs=0 layer={}\n", name,
                     microbatch, layer);
}
std::string repeating_backward(const std::string& name, int microbatch, int layer) {
  const std::string label = fmt::format("mb={} vs=0 layer={}\n", microbatch, layer);
  return fmt::format("linear(k{}, w -> r{}) {{has_bias=false}} s dgrad ", name, name) + label +
         fmt::format("linear_dgrad(x, w -> d{}) {{accumulate=false}} s dgrad ", name) + label +
         fmt::format("linear_wgrad(r{}, d{} -> rw g0) {{has_bias=false, accumulate=true}} s wgrad ",
                     name, name) +
         label;
}

// A delayed weight gradient keeps r and d instead of k, of which there are four. Without the pass
// there are at most 6 buffers, and the first rank keeps k of two more microbatches. The last
// backward has its own k, r and d.
TEST(FillCooldown, WhereActivationsAreMadeAgainKeepsNoMoreThanTheFirstRank) {
  std::string tasks;
  for (int i = 0; i < 4; ++i) {
    tasks += keeping_forward(std::to_string(i), i, 2);
  }
  for (int i = 0; i < 4; ++i) {
    tasks += repeating_backward(std::to_string(i), i, 2) + send(i);
  }
  const std::string tables = kTables + step_buffers({"0", "1", "2", "3"});
  const auto waiting = [&](const RecomputeOptions& recompute) {
    const Program program = parse_program(tables + tasks);
    const Names names = names_of(fill_cooldown(program, {.recompute = recompute}).program);
    const auto last_message = std::ranges::find(names, "S3.0");
    return Names(last_message + 1, names.end());
  };
  EXPECT_EQ(waiting({}), (Names{"W0.0", "W1.0", "W2.0", "W3.0"}));
  EXPECT_EQ(waiting({.policy = Recompute::kFull}), (Names{"W1.0", "W2.0", "W3.0"}));
  // In some layers: those of the first rank may be among them, and these not.
  EXPECT_EQ(waiting({.policy = Recompute::kFull, .num_layers = 2}), (Names{"W2.0", "W3.0"}));
}

// Both layers' r and d at once, where each layer's were gone before the next one's were made.
TEST(FillCooldown, WhereEvenAMessageInFrontTakesMemoryNothingMoves) {
  std::string tasks = keeping_forward("2", 0, 2) + keeping_forward("3", 0, 3);
  tasks += repeating_backward("3", 0, 3) + repeating_backward("2", 0, 2) +
           "send(d2) {group=0, peer=1, channel=0} t comm mb=0 vs=0\n";
  const std::string tables = kTables + step_buffers({"2", "3"});
  EXPECT_TRUE(fill(tasks, tables).report.changed);
  const RecomputeOptions recompute{.policy = Recompute::kFull, .num_layers = 2};
  EXPECT_EQ(fill(tasks, tables, recompute).report.summary,
            "moved nothing: recomputed values would have to be kept");
}

TEST(FillCooldown, OfTheHeadToo) {
  const std::string head =
      "linear_wgrad(x, d1 -> rw h) {has_bias=false, accumulate=true} s wgrad mb=1 vs=0\n";
  const PassResult result = fill(forward(0) + backward(0) + dgrad(1) + head + wgrad(1) + send(1));
  EXPECT_EQ(names_of(result.program),
            (Names{"F0.0", "D0.0", "S0.0", "W0.0", "D1.0", "S1.0", "W1.0", "W1.0"}));
}

TEST(FillCooldown, OnTheFirstRankNothingWaitsForTheLastMessage) {
  const std::string last = dgrad(3) + wgrad(3);  // the first stage: it sends nothing
  const PassResult result =
      fill(forward(0) + backward(0, 1) + backward(1, 1) + dgrad(2) + wgrad(2) + last);
  EXPECT_EQ(names_of(result.program), (Names{"F0.0", "D0.1", "S0.1", "W0.1", "D1.1", "S1.1", "W1.1",
                                             "D2.0", "W2.0", "D3.0", "W3.0"}));
}

TEST(FillCooldown, WhatReducesAGradientFollowsIt) {
  const PassResult result = fill(forward(0) + backward(0) + dgrad(1) + wgrad(1) +
                                 "all_reduce(-> rw g0) {group=1} t comm layer=2\n" + send(1));
  EXPECT_EQ(names_of(result.program),
            (Names{"F0.0", "D0.0", "S0.0", "D1.0", "S1.0", "W0.0", "W1.0", "all_reduce-1.-1"}));
}

TEST(FillCooldown, WithoutAPipelineNothingMoves) {
  const Program program =
      parse_program(kTables + buffers(6) + forward(0) + dgrad(0) + wgrad(0) + dgrad(1) + wgrad(1));
  EXPECT_FALSE(fill_cooldown(program).report.changed);
  const Program pipeline =
      parse_program(kTables + buffers(6) + forward(0) + backward(0) + backward(1));
  EXPECT_FALSE(fill_cooldown(pipeline, {.enabled = false}).report.changed);
  EXPECT_FALSE(fill_cooldown(Program()).report.changed);
}

}  // namespace
}  // namespace braid
