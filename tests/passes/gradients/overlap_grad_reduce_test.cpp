#include "passes/gradients/overlap_grad_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "ir/text.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/streams/assign_streams.h"
#include "passes/streams/insert_events.h"
#include "support/program_files.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

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
  // That of a is where it was: directly after its gradient.
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

/// Sharded gradients: whole ones in step buffers, and their sums over ranks.
std::string sharded_tables(int num_units) {
  std::string text =
      "program step rank=0 ranks=2 events=0\n"
      "stream s kind=compute priority=0\n"
      "group dp kind=data ranks=0,1\n"
      "group tp kind=tensor ranks=0,1\n"
      "buffer x f32 [64] activation persistent device\n";
  for (int unit = 0; unit < num_units; ++unit) {
    const char name = static_cast<char>('a' + unit);
    text += fmt::format("buffer g{} f32 [128] grad step device\n", name);
    text += fmt::format("buffer r{} f32 [64] grad step device\n", name);
    text += fmt::format("buffer m{} f32 [64] main_grad persistent device\n", name);
  }
  return text;
}
std::string make(char unit) {
  return fmt::format("wgrad(x -> g{}) s wgrad mb=0\n", unit);
}
std::string reduce(char unit) {
  return fmt::format("reduce_scatter(g{0} -> r{0}) {{group=0}} s comm\n", unit);
}
std::string add(char unit) {
  return fmt::format("accumulate(r{0} -> rw m{0}) s wgrad\n", unit);
}
std::string give_back(char unit) {
  return fmt::format("undefine(-> g{}) s wgrad\n", unit);
}

TEST(OverlapGradReduce, GivesAWholeGradientBackWhenTheNextIsReduced) {
  const std::string head = sharded_tables(3);
  const PassResult result = overlap_grad_reduce(
      parse_program(head + make('c') + make('b') + make('a') + reduce('c') + add('c') +
                    reduce('b') + add('b') + reduce('a') + add('a')));
  EXPECT_EQ(print_program(result.program).substr(head.size()),
            make('c') + reduce('c') + add('c') + make('b') + reduce('b') + add('b') +
                give_back('c') + make('a') + reduce('a') + add('a') + give_back('b') +
                give_back('a'));
  EXPECT_EQ(result.report.summary,
            "moved 2 of 3 gradient communications, freed 3 full gradients one unit later");
  EXPECT_EQ(result.report.num_changes, 7);
  EXPECT_FALSE(overlap_grad_reduce(result.program).report.changed);
}

// Of two virtual stages: the sums of the second are complete before those of the first begin.
TEST(OverlapGradReduce, GivesSumsOverAllMicrobatchesBackIfOthersBegin) {
  std::string head = sharded_tables(4);
  for (size_t at = 0; (at = head.find(" grad ", at)) != std::string::npos;) {
    head.replace(at, 6, " main_grad ");
  }
  const std::string begin = make('d') + make('c') + make('b') + make('a');
  const PassResult result = overlap_grad_reduce(
      parse_program(head + begin + reduce('d') + add('d') + reduce('c') + add('c') + reduce('b') +
                    add('b') + reduce('a') + add('a')));
  EXPECT_EQ(print_program(result.program).substr(head.size()),
            make('d') + reduce('d') + add('d') + make('c') + reduce('c') + add('c') +
                give_back('d') + make('b') + reduce('b') + add('b') + give_back('c') + make('a') +
                reduce('a') + add('a'));
}

// The last reductions of a microbatch have the next forward to run beside.
TEST(OverlapGradReduce, KeepsAWholeGradientUntilAThirdBegins) {
  const std::string head = sharded_tables(3);
  const std::string forward = "norm(-> x) s forward mb=1\n";
  const PassResult result = overlap_grad_reduce(
      parse_program(head + make('b') + make('a') + reduce('b') + add('b') + reduce('a') + add('a') +
                    forward + make('c') + reduce('c') + add('c')));
  EXPECT_EQ(print_program(result.program).substr(head.size()),
            make('b') + reduce('b') + add('b') + make('a') + reduce('a') + add('a') + forward +
                give_back('b') + make('c') + reduce('c') + add('c') + give_back('a') +
                give_back('c'));
}

// 512 bytes each, and one sum of 256.
TEST(OverlapGradReduce, NoMoreThanTwoWholeGradientsExist) {
  for (const int num_units : {2, 3, 6}) {
    std::string backward;
    std::string reductions;
    for (int unit = num_units; unit-- > 0;) {
      const char name = static_cast<char>('a' + unit);
      backward += make(name);
      reductions += reduce(name) + add(name);
    }
    Program program =
        overlap_grad_reduce(parse_program(sharded_tables(num_units) + backward + reductions))
            .program;
    program = insert_events(assign_streams(std::move(program), {}).program).program;
    EXPECT_TRUE(verify(program, 1).empty());
    const std::array programs = {&program};
    EXPECT_LE(plan_memory(programs).step_bytes, 2 * 512 + 256) << num_units << " units";
  }
}

// 512 bytes each: with room for three, c is kept until the fourth begins; with room for one, each
// is returned before the next begins.
TEST(OverlapGradReduce, KeepsWholeGradientsAsLongAsTheBudgetPermits) {
  const std::string head = sharded_tables(4);
  std::string tasks = head;
  for (const char unit : {'d', 'c', 'b', 'a'}) {
    tasks += make(unit) + reduce(unit);
  }
  const PassResult three = overlap_grad_reduce(parse_program(tasks), {.budget_bytes = 4 * 512 - 1});
  EXPECT_EQ(print_program(three.program).substr(head.size()),
            make('d') + reduce('d') + make('c') + reduce('c') + make('b') + reduce('b') +
                give_back('d') + make('a') + reduce('a') + give_back('c') + give_back('b') +
                give_back('a'));
  EXPECT_THAT(three.report.summary, HasSubstr("kept 4 full gradients as long as 2.00 KiB permit"));
  const PassResult one = overlap_grad_reduce(parse_program(tasks), {.budget_bytes = 512});
  EXPECT_EQ(print_program(one.program).substr(head.size()),
            make('d') + reduce('d') + give_back('d') + make('c') + reduce('c') + give_back('c') +
                make('b') + reduce('b') + give_back('b') + make('a') + reduce('a') +
                give_back('a'));
}

// At the end of a step nobody needs the memory: compute does not wait for it.
TEST(OverlapGradReduce, KeepsWholeGradientsOfTheLastUnitsUntilAllAreReduced) {
  const std::string head = sharded_tables(4);
  const std::string begins = "dgrad(x -> ga[0:8], gb[0:8]) s dgrad mb=0\n";
  const auto rest = [](char unit) {
    return fmt::format("wgrad(x -> g{}[8:128]) s wgrad mb=0\n", unit);
  };
  const PassResult result = overlap_grad_reduce(
      parse_program(head + make('d') + begins + make('c') + rest('b') + rest('a') + reduce('d') +
                    reduce('c') + reduce('b') + reduce('a')));
  EXPECT_EQ(print_program(result.program).substr(head.size()),
            make('d') + reduce('d') + begins + make('c') + reduce('c') + rest('b') + reduce('b') +
                rest('a') + reduce('a') + give_back('d') + give_back('c') + give_back('b') +
                give_back('a'));
}

// Otherwise the norm of the gradient that is reduced last would delay all other norms.
TEST(OverlapGradReduce, NormsFollowTheOrderOfReductions) {
  const std::string header = std::string(kHeader) + "buffer p f64 [3] scratch persistent device\n";
  const auto norm = [](char gradient, int place) {
    return fmt::format("squared_norm({} -> p[{}:{}]) s optimizer\n", gradient, place, place + 1);
  };
  const std::string backward =
      "wgrad(-> rw b) s wgrad\n"
      "reduce(-> rw b) s comm\n"
      "wgrad(-> rw c) s wgrad\n"
      "reduce(-> rw c) s comm\n"
      "wgrad(-> rw a) s wgrad\n"
      "reduce(-> rw a) s comm\n";
  const std::string sum = "sum(p -> x[0:1]) s optimizer\n";
  const PassResult result = overlap_grad_reduce(
      parse_program(header + backward + norm('a', 0) + norm('b', 1) + norm('c', 2) + sum));
  EXPECT_EQ(print_program(result.program).substr(header.size()),
            backward + norm('b', 1) + norm('c', 2) + norm('a', 0) + sum);
  EXPECT_EQ(result.report.num_changes, 3);
  EXPECT_FALSE(overlap_grad_reduce(result.program).report.changed);
}

// What rounds a gradient is compute; what widens its sum again follows the communication.
TEST(OverlapGradReduce, RoundingMovesAlong) {
  const std::string head = sharded_tables(2) + "buffer n f32 [128] grad step device\n";
  const std::string round = "cast(gb -> n) s wgrad\n";
  const std::string sum = "reduce_scatter(n -> rb) {group=0} s comm\n";
  const std::string widen = "cast(rb -> mb) s wgrad\n";
  const PassResult result = overlap_grad_reduce(
      parse_program(head + make('b') + make('a') + round + sum + widen + reduce('a') + add('a')));
  EXPECT_EQ(print_program(result.program).substr(head.size()),
            make('b') + round + sum + widen + make('a') + reduce('a') + add('a') +
                "undefine(-> n) s wgrad\n" + give_back('a'));
}

// It could not leave the compute stream, which would wait there for the sum over data ranks.
TEST(OverlapGradReduce, PartialSumsOfTensorRanksStay) {
  const std::string head = sharded_tables(2);
  const std::string activations = "all_reduce(-> rw x) {group=1} s comm\n";
  const std::string partial = "all_reduce(-> rw mb[0:8]) {group=1} s comm\n";
  const std::string sum = make('b') + reduce('b') + add('b');
  const std::string tasks = sum + make('a') + partial;
  const PassResult result = overlap_grad_reduce(parse_program(head + activations + tasks));
  EXPECT_EQ(print_program(result.program).substr(head.size()),
            activations + sum + give_back('b') + make('a') + partial);
  // A group of its own may.
  const PassResult alone = overlap_grad_reduce(parse_program(head + tasks));
  EXPECT_EQ(print_program(alone.program).substr(head.size()),
            sum + partial + give_back('b') + make('a'));
}

TEST(OverlapGradReduce, SumsOverStagesStayBehindTheLastMessage) {
  // A tied embedding. The first stage comes to its sum when it has the last stage's last message;
  // if that were to wait for the sum, on one stream, both would wait for ever.
  const std::string header = std::string(kHeader) + "group embedding kind=pipeline ranks=0,1\n";
  const auto result =
      overlap_grad_reduce(parse_program(header + "wgrad(-> rw a) s wgrad\n"
                                                 "dgrad(-> x) s dgrad\n"
                                                 "send(x) {group=0, peer=1, channel=0} s comm\n"
                                                 "wgrad(-> rw b) s wgrad\n"
                                                 "all_reduce(-> rw a) {group=0} s comm\n"));
  EXPECT_EQ(print_program(result.program).substr(header.size()),
            "wgrad(-> rw a) s wgrad\n"
            "dgrad(-> x) s dgrad\n"
            "send(x) {group=0, peer=1, channel=0} s comm\n"
            "all_reduce(-> rw a) {group=0} s comm\n"
            "wgrad(-> rw b) s wgrad\n");
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
