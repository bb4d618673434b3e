#include "passes/gradients/delay_last_wgrad.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ir/text.h"
#include "support/symbolic.h"

namespace braid {
namespace {

// The rank of a data-parallel run that has the embedding and layers 0 to 2.
const std::string kTables =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group data kind=data ranks=0,1\n"
    "buffer g0 f32 [8] main_grad persistent device\n"
    "buffer g1 f32 [8] main_grad persistent device\n"
    "buffer g2 f32 [8] main_grad persistent device\n"
    "buffer ge f32 [8] main_grad persistent device\n"
    "buffer n0 f32 [8] grad persistent device\n"
    "buffer d f32 [8] activation persistent device\n";

std::string at(int microbatch, int layer, int stage = 0) {
  return fmt::format("mb={} vs={} layer={} site=layers.{}.fc\n", microbatch, stage, layer, layer);
}
std::string wgrad(int microbatch, int layer, int stage = 0) {
  return fmt::format("wgrad(d[{0}:{1}] -> rw g{0}) s wgrad ", layer, layer + 1) +
         at(microbatch, layer, stage);
}
std::string embedding(int microbatch, const char* op = "embedding_wgrad") {
  return fmt::format("{}(d[0:1] -> rw ge) s wgrad mb={} vs=0\n", op, microbatch);
}
std::string backward(int microbatch) {
  std::string text;
  for (const int layer : {2, 1, 0}) {
    text += fmt::format("dgrad(-> rw d[{}:{}]) s dgrad ", layer, layer + 1) + at(microbatch, layer);
    text += wgrad(microbatch, layer);
  }
  return text + embedding(microbatch);
}
std::string reduce(const std::string& gradient) {
  return fmt::format("all_reduce(-> rw g{}) {{group=0}} s comm\n", gradient);
}
const std::string kReductions = reduce("2") + reduce("1") + reduce("0") + reduce("e");

/// "wgrad 0 mb1", "embedding_wgrad mb1"; without communication.
std::vector<std::string> names_of(const Program& program) {
  std::vector<std::string> names;
  for (const Task& task : program.tasks) {
    if (task.label.phase == Phase::kComm) {
      continue;
    }
    std::string name = program.spec(task).op;
    name += task.label.layer >= 0 ? fmt::format(" {}", task.label.layer) : "";
    names.push_back(name + fmt::format(" mb{}", task.label.microbatch));
  }
  return names;
}

PassResult delay(const std::string& tasks, int64_t num_layers) {
  const Program program = parse_program(kTables + tasks);
  PassResult result = delay_last_wgrad(program, {.num_layers = num_layers});
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  EXPECT_EQ(result.report.changed, !(result.program == program));
  const PassResult again = delay_last_wgrad(result.program, {.num_layers = num_layers});
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

using Names = std::vector<std::string>;

TEST(DelayLastWgrad, OfTheFirstLayersHidesTheReductionOfTheEmbedding) {
  const PassResult one = delay(backward(0) + kReductions, 1);
  EXPECT_EQ(names_of(one.program),
            (Names{"dgrad 2 mb0", "wgrad 2 mb0", "dgrad 1 mb0", "wgrad 1 mb0", "dgrad 0 mb0",
                   "embedding_wgrad mb0", "wgrad 0 mb0"}));
  EXPECT_EQ(one.report.num_changes, 1);
  EXPECT_EQ(one.report.summary, "moved 1 weight gradients behind that of the embedding");
  EXPECT_EQ(names_of(delay(backward(0) + kReductions, 2).program),
            (Names{"dgrad 2 mb0", "wgrad 2 mb0", "dgrad 1 mb0", "dgrad 0 mb0",
                   "embedding_wgrad mb0", "wgrad 1 mb0", "wgrad 0 mb0"}));
}

TEST(DelayLastWgrad, MoreLayersThanThereAreIsAllAndNoneIsNone) {
  const PassResult all = delay(backward(0) + kReductions, 3);
  EXPECT_EQ(all.report.num_changes, 3);
  EXPECT_EQ(delay(backward(0) + kReductions, 9).program, all.program);
  EXPECT_FALSE(delay(backward(0) + kReductions, 0).report.changed);
}

// Earlier ones have the next microbatch to hide what they reduce, and gradients are added up in the
// order of microbatches.
TEST(DelayLastWgrad, OnlyOfTheLastMicrobatch) {
  const PassResult result = delay(backward(0) + backward(1) + kReductions, 1);
  EXPECT_EQ(
      names_of(result.program),
      (Names{"dgrad 2 mb0", "wgrad 2 mb0", "dgrad 1 mb0", "wgrad 1 mb0", "dgrad 0 mb0",
             "wgrad 0 mb0", "embedding_wgrad mb0", "dgrad 2 mb1", "wgrad 2 mb1", "dgrad 1 mb1",
             "wgrad 1 mb1", "dgrad 0 mb1", "embedding_wgrad mb1", "wgrad 0 mb1"}));
}

// Other virtual stages of the rank end before the first one does.
TEST(DelayLastWgrad, OnlyOfTheStageOfTheEmbedding) {
  const PassResult result =
      delay(wgrad(0, 0, 1) + wgrad(0, 2) + wgrad(0, 1) + embedding(0) + kReductions, 1);
  EXPECT_EQ(names_of(result.program),
            (Names{"wgrad 0 mb0", "wgrad 2 mb0", "embedding_wgrad mb0", "wgrad 1 mb0"}));
}

TEST(DelayLastWgrad, BehindThatOfPositionsToo) {
  const std::string positions = embedding(0, "position_embedding_wgrad");
  EXPECT_EQ(names_of(delay(wgrad(0, 0) + embedding(0) + positions + kReductions, 1).program),
            (Names{"embedding_wgrad mb0", "position_embedding_wgrad mb0", "wgrad 0 mb0"}));
}

TEST(DelayLastWgrad, WaitsForARoundedGradientAsWell) {
  EXPECT_TRUE(
      delay(backward(0) + "cast(ge -> n0) s wgrad\n" + "all_reduce(-> rw n0) {group=0} s comm\n", 1)
          .report.changed);
}

TEST(DelayLastWgrad, NothingWhereTheEmbeddingIsElsewhereOrNotReduced) {
  EXPECT_FALSE(delay(wgrad(0, 1) + wgrad(0, 0) + kReductions, 1).report.changed);
  EXPECT_FALSE(delay(backward(0) + reduce("0"), 1).report.changed);
}

TEST(DelayLastWgrad, StaysWhereSomethingElseNeedsIt) {
  const PassResult result = delay(
      wgrad(0, 1) + wgrad(0, 0) + "norm(g0 -> n0) s optimizer\n" + embedding(0) + kReductions, 2);
  EXPECT_EQ(names_of(result.program),
            (Names{"wgrad 0 mb0", "norm mb-1", "embedding_wgrad mb0", "wgrad 1 mb0"}));
  EXPECT_EQ(result.report.summary,
            "moved 1 weight gradients behind that of the embedding; 1 stay, because an earlier "
            "task needs them");
}

}  // namespace
}  // namespace braid
