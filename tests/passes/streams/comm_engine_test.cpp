#include "passes/streams/comm_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/errors.h"
#include "base/expect_error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "parallel/verify_ranks.h"
#include "passes/analysis/step_meaning.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kHead =
    "program step rank=1 ranks=2 events=0\n"
    "stream compute kind=compute priority=0\n"
    "stream comm.data kind=comm priority=1\n";
const std::string kBuffers =
    "group data kind=data ranks=0,1\n"
    "group self kind=tensor ranks=1\n"
    "group pipeline kind=pipeline ranks=0,1\n"
    "buffer x bf16 [4,3] grad persistent device\n"
    "buffer y bf16 [2,3] grad persistent device\n"
    "buffer z bf16 [3] grad persistent device\n";

Program program_of(const std::string& tasks) {
  return parse_program(kHead + kBuffers + tasks);
}

PassResult forced(const Program& program) {
  return comm_engine(program, {.engine = CommEngine::kCopy}, {});
}

/// The pass changes no bit of the step.
void expect_same_meaning(const Program& before, const PassResult& after) {
  EXPECT_THAT(verify(after.program, 16, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(compare_meaning(StepMeaning(before), after.program, StepMeaning(after.program)),
              IsEmpty());
}

TEST(CommEngine, CopyTakesWhatOnlyMovesBytes) {
  const Program program = program_of(
      "all_gather(y -> x) {group=0} comm.data comm\n"
      "all_to_all(y -> y) {group=1} comm.data comm\n"
      "send(z) {group=2, peer=0, channel=1} compute comm\n"
      "recv(-> z) {group=2, peer=0, channel=2} compute comm\n"
      "broadcast(z -> z) {group=2, root=0} compute comm\n");
  const PassResult result = forced(program);
  const std::string text = print_program(result.program);
  EXPECT_THAT(text, HasSubstr("all_gather(y -> x) {group=0, engine=\"copy\"} comm.data comm"));
  EXPECT_THAT(text,
              HasSubstr("send(z) {group=2, peer=0, channel=1, engine=\"copy\"} compute comm"));
  EXPECT_THAT(text, HasSubstr("recv(-> z) {group=2, peer=0, channel=2, engine=\"copy\"} compute"));
  EXPECT_THAT(text, HasSubstr("all_to_all(y -> y) {group=1} comm.data comm"));  // alone
  EXPECT_THAT(text, HasSubstr("broadcast(z -> z) {group=2, root=0} compute comm"));
  EXPECT_EQ(result.report.num_changes, 3);
  EXPECT_EQ(result.report.summary,
            "copy engines run 3 of 4 communication tasks, SMs run the others");
  EXPECT_EQ(parse_program(text), result.program);
}

TEST(CommEngine, NcclCopyTakesWhatNcclHasCopiesFor) {
  const Program program = program_of(
      "all_gather(y -> x) {group=0} comm.data comm\n"
      "all_to_all(x -> x) {group=0} comm.data comm\n"
      "reduce_scatter(x -> y) {group=0} comm.data comm\n"
      "all_to_all(y -> y) {group=1} comm.data comm\n"
      "send(z) {group=2, peer=0, channel=1} compute comm\n");
  const PassResult result = comm_engine(program, {.engine = CommEngine::kNcclCopy}, {});
  const std::string text = print_program(result.program);
  EXPECT_THAT(text, HasSubstr("all_gather(y -> x) {group=0, engine=\"nccl_copy\"} comm.data comm"));
  EXPECT_THAT(text, HasSubstr("all_to_all(x -> x) {group=0, engine=\"nccl_copy\"} comm.data comm"));
  EXPECT_THAT(text, HasSubstr("reduce_scatter(x -> y) {group=0} comm.data comm"));
  EXPECT_THAT(text, HasSubstr("all_to_all(y -> y) {group=1} comm.data comm"));  // alone
  EXPECT_THAT(text, HasSubstr("send(z) {group=2, peer=0, channel=1} compute comm"));
  EXPECT_EQ(result.report.summary,
            "copy engines run 2 of 4 communication tasks through NCCL, SMs run the others");
  EXPECT_EQ(parse_program(text), result.program);
  expect_same_meaning(program, result);
}

TEST(CommEngine, CopyTakesSumsApart) {
  const Program program = program_of("reduce_scatter(x -> y) {group=0} comm.data comm\n");
  const PassResult result = forced(program);
  EXPECT_EQ(print_program(result.program),
            kHead + kBuffers +
                "buffer x.received bf16 [12] scratch step device\n"
                "all_to_all(x [12] -> x.received) {group=0, engine=\"copy\"} comm.data comm\n"
                "sum_blocks(x.received[0:6], x.received[6:12] -> y [6]) comm.data comm\n");
  EXPECT_EQ(result.report.summary,
            "copy engines run 1 of 1 communication tasks; replaced 1 reductions by copies and a "
            "sum on each rank");
  expect_same_meaning(program, result);
}

TEST(CommEngine, CopyGathersSmallSumsWhole) {
  const Program program = program_of(
      "all_reduce(-> rw x) {group=0} comm.data comm\n"
      "all_reduce(-> rw z) {group=0} comm.data comm\n"  // 3 elements for 2 ranks
      "all_reduce(x -> x) {group=0} comm.data comm\n"
      "all_reduce(-> rw z) {group=1} comm.data comm\n");  // of one rank
  const PassResult result = forced(program);
  EXPECT_THAT(
      print_program(result.program),
      HasSubstr("all_gather(x [12] -> x.received) {group=0, engine=\"copy\"} comm.data comm\n"
                "sum_blocks(x.received[0:12], x.received[12:24] -> x [12]) comm.data comm\n"
                "all_gather(z -> z.received) {group=0, engine=\"copy\"} comm.data comm\n"
                "sum_blocks(z.received[0:3], z.received[3:6] -> z) comm.data comm\n"
                "all_gather(x [12] -> x.received1) {group=0, engine=\"copy\"} comm.data comm\n"
                "sum_blocks(x.received1[0:12], x.received1[12:24] -> x [12]) comm.data comm\n"
                "all_reduce(-> rw z) {group=1} comm.data comm\n"));
  EXPECT_EQ(result.report.num_changes, 3);
  EXPECT_EQ(result.report.summary,
            "copy engines run 3 of 3 communication tasks; replaced 3 reductions by copies and a "
            "sum on each rank");
  expect_same_meaning(program, result);
}

TEST(CommEngine, CopyTakesTheLargestElementsOnEachRank) {
  const Program program =
      parse_program(kHead +
                    "group data kind=data ranks=0,1\nbuffer m i32 [5] io persistent device\n"
                    "buffer a i32 [16385] io persistent device\n"
                    "all_reduce_max(-> rw m) {group=0} comm.data comm\n"
                    "all_reduce_max(-> rw a) {group=0} comm.data comm\n");
  const PassResult result = forced(program);
  EXPECT_THAT(
      print_program(result.program),
      AllOf(HasSubstr("all_gather(m -> m.received) {group=0, engine=\"copy\"} comm.data comm\n"
                      "largest_of_blocks(m.received[0:5], m.received[5:10] -> m) comm.data comm\n"),
            HasSubstr("largest_of_blocks(a.received[0:8192], a.received[8192:16384] -> a.sum)"),
            HasSubstr("all_gather(a.sum -> a[0:16384])"),
            HasSubstr("largest_of_blocks(a.received1[0:1], a.received1[1:2] -> a[16384:16385])"),
            Not(HasSubstr("all_reduce_max"))));
  expect_same_meaning(program, result);
}

/// In place, or to another buffer, of so many f32.
Program large_sum(int64_t elems, bool in_place) {
  return parse_program(kHead + "group data kind=data ranks=0,1\nbuffer a f32 [" +
                       std::to_string(elems) +
                       "] grad persistent device\n"
                       "buffer b f32 [" +
                       std::to_string(elems) + "] grad persistent device\n" +
                       (in_place ? "all_reduce(-> rw a) {group=0} comm.data comm\n"
                                 : "all_reduce(a -> b) {group=0} comm.data comm\n"));
}

TEST(CommEngine, CopyGathersTheSharesOfLargeSums) {
  for (const bool in_place : {true, false}) {
    const Program program = large_sum(16384, in_place);  // 64 KiB
    const PassResult result = forced(program);
    EXPECT_THAT(
        print_program(result.program),
        HasSubstr(
            std::string("all_to_all(a -> a.received) {group=0, engine=\"copy\"} comm.data comm\n"
                        "sum_blocks(a.received[0:8192], a.received[8192:16384] -> a.sum) comm.data "
                        "comm\nall_gather(a.sum -> ") +
            (in_place ? "a" : "b") + ") {group=0, engine=\"copy\"} comm.data comm\n"));
    expect_same_meaning(program, result);
  }
}

// Which come out even but for some elements.
TEST(CommEngine, CopyTakesLargeSumsOfUnequalSharesApart) {
  for (const bool in_place : {true, false}) {
    const std::string y = in_place ? "a" : "b";
    const Program program = large_sum(16385, in_place);
    const PassResult result = forced(program);
    const std::string text = print_program(result.program);
    EXPECT_THAT(text, HasSubstr("all_to_all(a[0:16384] -> a.received) {group=0"));
    EXPECT_THAT(text, HasSubstr("all_gather(a.sum -> " + y + "[0:16384]) {group=0"));
    EXPECT_THAT(text, HasSubstr("all_gather(a[16384:16385] -> a.received1) {group=0"));
    EXPECT_THAT(text, HasSubstr("sum_blocks(a.received1[0:1], a.received1[1:2] -> " + y +
                                "[16384:16385]) comm.data"));
    EXPECT_EQ(result.report.summary,
              "copy engines run 1 of 1 communication tasks; replaced 1 reductions by copies and a "
              "sum on each "
              "rank");
    expect_same_meaning(program, result);
  }
}

TEST(CommEngine, AnotherSumIsAnotherMeaning) {
  const Program program = program_of("reduce_scatter(x -> y) {group=0} comm.data comm\n");
  const Program swapped = program_of(
      "buffer r bf16 [12] scratch step device\n"
      "all_to_all(x [12] -> r) {group=0, engine=\"copy\"} comm.data comm\n"
      "sum_blocks(r[6:12] [6], r[0:6] [6] -> y [6]) comm.data comm\n");
  EXPECT_THAT(compare_meaning(StepMeaning(program), swapped, StepMeaning(swapped)), Not(IsEmpty()));
}

TEST(CommEngine, SmAndUnknownCostsLeaveAllAsItIs) {
  const Program program = program_of("all_gather(y -> x) {group=0} comm.data comm\n");
  for (const CommEngine engine : {CommEngine::kSm, CommEngine::kAuto}) {
    const PassResult result = comm_engine(program, {.engine = engine}, {});
    EXPECT_EQ(result.program, program);
    EXPECT_FALSE(result.report.changed);
    EXPECT_EQ(result.report.summary,
              "copy engines run 0 of 1 communication tasks, SMs run the others");
  }
}

/// Rank 1's copies meet what rank 0 does by SMs.
std::string fault_of(const std::string& tasks0, const std::string& tasks1) {
  const auto program = [](int rank, const std::string& tasks) {
    return parse_program("program step rank=" + std::to_string(rank) +
                         " ranks=2 events=0\n"
                         "stream comm kind=comm priority=1\n"
                         "group data kind=data ranks=0,1\n"
                         "buffer x bf16 [6] grad persistent device\n"
                         "buffer y bf16 [3] grad persistent device\n" +
                         tasks);
  };
  const std::vector<Program> programs{program(0, tasks0), forced(program(1, tasks1)).program};
  const auto faults = verify_ranks(one_program_per_rank(programs));
  return faults.empty() ? "" : faults.front().message;
}

TEST(CommEngine, RanksThatDoNotAgreeAreFound) {
  const std::string gather = "all_gather(y -> x) {group=0} comm comm\n";
  EXPECT_THAT(fault_of(gather, gather), HasSubstr("engine=\"copy\""));
  EXPECT_THAT(fault_of("send(x) {group=0, peer=1, channel=0} comm comm\n",
                       "recv(-> x) {group=0, peer=0, channel=0} comm comm\n"),
              HasSubstr("by copy engine"));
}

/// One gather of this many bf16 on each of `ranks`.
std::string auto_choice(const std::string& ranks, int64_t elems, const std::string& cluster) {
  const Program program = parse_program(
      "program step rank=0 ranks=16 events=0\n"
      "stream comm kind=comm priority=1\n"
      "group data kind=data ranks=" +
      ranks + "\nbuffer x bf16 [" + std::to_string(elems) +
      "] param persistent device\nbuffer y bf16 [" + std::to_string(2 * elems) +
      "] gathered persistent device\nall_gather(x -> y) {group=0} comm comm\n"
      "reduce_scatter(y -> x) {group=0} comm comm\n");
  const auto model = make_analytic_model(parse_cluster(cluster));
  return comm_engine(program, {}, {.cost_model = model.get()}).report.summary;
}

TEST(CommEngine, AutoGoesByCosts) {
  const std::string none = "copy engines run 0 of 2 communication tasks, SMs run the others";
  const std::string gather = "copy engines run 1 of 2 communication tasks, SMs run the others";
  constexpr int64_t kMany = int64_t{64} << 20;
  EXPECT_EQ(auto_choice("0,1", kMany, "h200x16"), gather);
  EXPECT_EQ(auto_choice("0,1", 64, "h200x16"), none);     // latency is all there is
  EXPECT_EQ(auto_choice("0,8", kMany, "h200x16"), none);  // of two nodes
}

TEST(CommEngine, CopyTakesSumsApartWithinNodesOnly) {
  const auto model = make_analytic_model(parse_cluster("h200x16"));
  const auto sums = [&](const std::string& ranks) {
    const Program program = parse_program(
        "program step rank=0 ranks=16 events=0\n"
        "stream comm kind=comm priority=1\n"
        "group data kind=data ranks=" +
        ranks +
        "\nbuffer x bf16 [64] grad persistent device\n"
        "all_reduce(-> rw x) {group=0} comm comm\n");
    return comm_engine(program, {.engine = CommEngine::kCopy}, {.cost_model = model.get()})
        .report.num_changes;
  };
  EXPECT_EQ(sums("0,1"), 1);
  EXPECT_EQ(sums("0,8"), 0);
}

TEST(CommEngine, EachTaskMayHaveAnEngineOfItsOwn) {
  const Program program = program_of(
      "all_gather(y -> x) {group=0, engine=\"copy\"} comm.data comm\n"
      "all_gather(y -> x) {group=0} comm.data comm\n"
      "reduce_scatter(x -> y) {group=0} comm.data comm\n"
      "reduce_scatter(x -> y) {group=0} comm.data comm\n"
      "copy(z -> z) compute forward\n");
  using enum TaskEngine;
  const Program changed = with_engines(program, std::array{kSm, kCopy, kSm, kCopy, kCopy});
  const std::string text = print_program(changed);
  EXPECT_THAT(text, HasSubstr("all_gather(y -> x) {group=0} comm.data comm\n"
                              "all_gather(y -> x) {group=0, engine=\"copy\"} comm.data comm\n"
                              "reduce_scatter(x -> y) {group=0} comm.data comm\n"
                              "all_to_all(x [12] -> x.received) {group=0, engine=\"copy\"}"));
  EXPECT_THAT(text, HasSubstr("copy(z -> z) compute forward"));
  EXPECT_THAT(compare_meaning(StepMeaning(program), changed, StepMeaning(changed)), IsEmpty());
  EXPECT_THAT(message_of<InternalError>([&] { with_engines(program, std::array{kSm}); }),
              HasSubstr("engines of 1 tasks for a program of 5"));
}

}  // namespace
}  // namespace braid
