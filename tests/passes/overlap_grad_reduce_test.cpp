#include "passes/overlap_grad_reduce.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "support/program_files.h"

namespace braid {
namespace {

const char* const kHeader =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "buffer a f32 [8] main_grad persistent device\n"
    "buffer b f32 [8] main_grad persistent device\n"
    "buffer c f32 [8] grad persistent device\n"
    "buffer x f32 [8] activation persistent device\n";

PassResult overlap(const std::string& tasks) {
  return overlap_grad_reduce(parse_program(kHeader + tasks));
}
std::string tasks_of(const PassResult& result) {
  return print_program(result.program).substr(std::string(kHeader).size());
}

TEST(OverlapGradReduce, MovesEachReductionToWhereItsGradientIsReady) {
  const PassResult result = overlap(
      "wgrad(-> rw b) s wgrad\n"
      "dgrad(-> x) s dgrad\n"
      "wgrad(x -> rw a) s wgrad\n"
      "reduce(-> rw a) s comm\n"
      "reduce(-> rw b) s comm\n");
  EXPECT_EQ(tasks_of(result),
            "wgrad(-> rw b) s wgrad\n"
            "reduce(-> rw b) s comm\n"
            "dgrad(-> x) s dgrad\n"
            "wgrad(x -> rw a) s wgrad\n"
            "reduce(-> rw a) s comm\n");
  EXPECT_TRUE(result.report.changed);
  // That of a is where it was: directly behind its gradient.
  EXPECT_EQ(result.report.summary, "moved 1 of 2 gradient communications");
  EXPECT_EQ(result.report.num_changes, 1);
}

TEST(OverlapGradReduce, WaitsForEveryPartAndKeepsTheOrderOfWhatIsReadyTogether) {
  const PassResult result = overlap(
      "wgrad(-> rw a[0:4], rw b) s wgrad\n"
      "wgrad(-> rw a[4:8]) s wgrad\n"
      "norm(-> x) s forward\n"
      "reduce(-> rw a[0:4]) s comm layer=0\n"
      "reduce(-> rw a) s comm layer=1\n"
      "reduce(-> rw b) s comm layer=2\n"
      "reduce(-> rw a[4:8]) s comm layer=3\n");
  EXPECT_EQ(tasks_of(result),
            "wgrad(-> rw a[0:4], rw b) s wgrad\n"
            "reduce(-> rw a[0:4]) s comm layer=0\n"
            "reduce(-> rw b) s comm layer=2\n"
            "wgrad(-> rw a[4:8]) s wgrad\n"
            "reduce(-> rw a) s comm layer=1\n"
            "reduce(-> rw a[4:8]) s comm layer=3\n"
            "norm(-> x) s forward\n");
}

TEST(OverlapGradReduce, DoesNotPassWhoReadsTheGradientBefore) {
  const std::string tasks =
      "wgrad(-> rw a) s wgrad\n"
      "norm(a -> x) s optimizer\n"
      "reduce(-> rw a) s comm\n"
      "adamw(a -> rw x) s optimizer\n";
  const PassResult result = overlap(tasks);
  EXPECT_EQ(tasks_of(result), tasks);
  EXPECT_FALSE(result.report.changed);
}

TEST(OverlapGradReduce, MovesOnlyCommunicationThatWritesGradients) {
  const std::string tasks =
      "norm(-> x) s forward\n"
      "reduce(-> rw x) s comm\n"
      "norm() s forward\n"
      "gather(a -> x) s comm\n"
      "clip(-> rw a) s optimizer\n";
  EXPECT_EQ(tasks_of(overlap(tasks)), tasks);
  EXPECT_EQ(tasks_of(overlap("norm() s forward\nreduce(-> rw c) s comm\n")),
            "reduce(-> rw c) s comm\nnorm() s forward\n");
}

TEST(OverlapGradReduce, HidesTheReductionOfADataParallelStepUnderTheBackward) {
  const PassResult result = overlap_grad_reduce(read_program("data_parallel_step"));
  std::vector<std::string> ops;
  for (size_t i = 10; i < result.program.tasks.size(); ++i) {
    ops.push_back(describe_task(result.program, TaskId(i)));
  }
  EXPECT_EQ(ops, (std::vector<std::string>{
                     "cross_entropy_backward mb=1", "linear_wgrad layers.1 mlp mb=1",
                     "all_reduce layers.1 mlp", "linear_dgrad layers.1 mlp mb=1",
                     "linear_wgrad layers.0 mlp mb=1", "all_reduce layers.0 mlp",
                     "adamw layers.0 mlp", "adamw layers.1 mlp"}));
}

}  // namespace
}  // namespace braid
