#include "parallel/verify_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "parallel/rank_faults.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(VerifyRanks, AcceptsWhatFitsTogether) {
  Pair pair;
  pair.on_both("all_reduce", 4, at_layer(1));
  pair.on_both("all_gather", 2, at_layer(2));
  pair[0].send({.peer = 1}, 0);
  pair[1].recv({.peer = 0}, 0);
  EXPECT_TRUE(faults_of(pair.take()).empty());
}

TEST(VerifyRanks, ProgramsWithoutCommunicationFit) {
  Pair pair;
  pair[0].compute(0);
  EXPECT_TRUE(faults_of(pair.take()).empty());
  EXPECT_TRUE(faults_of(RankPrograms()).empty());
}

// Faults of single programs.

TEST(VerifyRanks, FindsAGroupThatIsTooSmallForTheShapes) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 3; ++rank) {
    RankProgramWriter writer(rank, 3, {"compute"});
    writer.add_group("all", {0, 1, 2});
    writer.collective("all_gather", 0, 2, 0);
    programs.push_back(writer.take());
  }
  EXPECT_TRUE(faults_of(programs).empty());
  for (Program& program : programs) {
    program.groups[0].ranks = {0, 1};
  }
  EXPECT_THAT(faults_of(programs).front(),
              StartsWith("rank 0 task 0 (all_gather): f32 [2] -> f32 [6] does not fit a group of "
                         "2"));
}

TEST(VerifyRanks, FindsAPeerThatIsNoMember) {
  Pair pair;
  pair[0].send({.peer = 2}, 0);
  EXPECT_EQ(fault_of(pair.take()), "rank 0 task 0 (send): peer 2 is not a member of a group of 2");
}

TEST(VerifyRanks, FindsAnEventThatNobodyRecords) {
  Pair pair;
  const TaskId first = pair[1].compute(0);
  const TaskId second = pair[1].collective("all_reduce", 0, 4, 1, at_layer(3));
  pair[0].collective("all_reduce", 0, 4, 1, at_layer(3));
  pair[1].wait(second, first);
  std::vector<Program> programs = pair.take();
  programs[1].tasks[first.index()].record = EventId();
  EXPECT_EQ(fault_of(programs),
            "rank 1 task 1 (all_reduce layers.3) waits for event e0, which no task records");
  programs[1].tasks[first.index()].record = EventId(size_t{0});
  EXPECT_TRUE(faults_of(programs).empty());
}

TEST(VerifyRanks, FindsCallsOfOneGroupInNoOrder) {
  Pair pair;
  pair[0].collective("all_reduce", 0, 4, 0, at_layer(1));
  pair[0].collective("all_reduce", 0, 4, 0, at_layer(2));
  const TaskId first = pair[1].collective("all_reduce", 0, 4, 0, at_layer(1));
  const TaskId second = pair[1].collective("all_reduce", 0, 4, 1, at_layer(2));
  Pair copy = pair;
  EXPECT_EQ(fault_of(pair.take()),
            "rank 1: task 0 (all_reduce layers.1) and task 1 (all_reduce layers.2) are calls in "
            "group pair in no order: they are on different streams, and no event is between them");
  copy[1].wait(second, first);
  EXPECT_TRUE(faults_of(copy.take()).empty());
}

// Faults between programs.

TEST(VerifyRanks, FindsGroupsThatDiffer) {
  Pair pair;
  pair.on_both("all_reduce", 4, at_layer(1));
  std::vector<Program> programs = pair.take();
  std::swap(programs[1].groups[0].ranks[0], programs[1].groups[0].ranks[1]);
  EXPECT_THAT(faults_of(programs),
              ::testing::Contains("group pair has ranks 0,1, but its member 1 says 1,0"));
  programs[1].groups[0].ranks = {0};
  EXPECT_THAT(faults_of(programs), ::testing::Contains("rank 1: group pair has ranks 0: not this "
                                                       "one"));
  programs[1].groups[0].ranks = {0, 7};
  EXPECT_THAT(faults_of(programs).front(), HasSubstr("there are 2 ranks"));
  programs[1].groups[0].ranks = {1, 1};
  EXPECT_THAT(faults_of(programs).front(), HasSubstr("one occurs twice"));
}

TEST(VerifyRanks, FindsAMissingGroup) {
  Pair pair;
  pair.on_both("all_reduce", 4, at_layer(1));
  std::vector<Program> programs = pair.take();
  programs[1].groups[0].name = "other";
  const std::vector<std::string> faults = faults_of(programs);
  EXPECT_EQ(faults.at(0),
            "group pair: rank 0 makes 1 calls, rank 1 0; rank 0 task 0 (all_reduce layers.1) has "
            "no counterpart");
  EXPECT_THAT(faults.at(1), StartsWith("group other: rank 0 makes 0 calls, rank 1 1;"));
}

TEST(VerifyRanks, FindsAMissingCollective) {
  Pair pair;
  pair.on_both("all_reduce", 4, at_layer(1));
  pair[0].collective("all_reduce", 0, 4, 0, at_layer(2));
  pair.on_both("all_reduce", 4, at_layer(3));
  EXPECT_EQ(fault_of(pair.take()),
            "group pair: rank 0 makes 3 calls, rank 1 2; rank 0 task 1 (all_reduce layers.2) has "
            "no counterpart: rank 1 continues with rank 1 task 1 (all_reduce layers.3)");
}

TEST(VerifyRanks, FindsSwappedCollectives) {
  Pair pair;
  pair[0].collective("all_reduce", 0, 4, 0, at_layer(1));
  pair[0].collective("all_reduce", 0, 8, 0, at_layer(2));
  pair[1].collective("all_reduce", 0, 8, 0, at_layer(2));
  pair[1].collective("all_reduce", 0, 4, 0, at_layer(1));
  EXPECT_EQ(fault_of(pair.take()),
            "group pair, call 1: rank 0 task 0 (all_reduce layers.1) has all_reduce f32 [4] -> f32 "
            "[4], but rank 1 task 0 (all_reduce layers.2) has all_reduce f32 [8] -> f32 [8]");
}

TEST(VerifyRanks, FindsSwappedCollectivesOfEqualShape) {
  Pair pair;
  pair.on_both("all_reduce", 4, at_layer(0));
  for (const int32_t layer : {1, 2, 3}) {
    pair[0].collective("all_reduce", 0, 4, 0, at_layer(layer));
    pair[1].collective("all_reduce", 0, 4, 0, at_layer(4 - layer));
  }
  EXPECT_EQ(fault_of(pair.take()),
            "group pair, call 2: rank 0 task 1 (all_reduce layers.1) meets rank 1 task 1 "
            "(all_reduce layers.3), but its counterpart is rank 1 task 3 (all_reduce layers.1), "
            "call 4");
}

/// Two calls of equal form and label, of the elements 0 to 8 and 8 to 16.
std::vector<Program> pieces_of(const std::string& op) {
  Pair pair;
  pair.on_both(op, 4, at_layer(1));
  pair.on_both(op, 4, at_layer(1));
  std::vector<Program> programs = pair.take();
  for (Program& program : programs) {
    for (BufferRange& range : std::span(program.operands).subspan(2)) {
      range.begin += 8;
      range.end += 8;
    }
  }
  return programs;
}

TEST(VerifyRanks, FindsSwappedPiecesOfACollective) {
  for (const char* const op : {"reduce_scatter", "all_gather", "all_to_all", "all_reduce"}) {
    SCOPED_TRACE(op);
    std::vector<Program> programs = pieces_of(op);
    EXPECT_TRUE(faults_of(programs).empty());
    std::swap(programs[1].tasks[0], programs[1].tasks[1]);
    EXPECT_THAT(fault_of(programs), HasSubstr("its counterpart is rank 1 task 1"));
  }
}

// Which block a rank passes on depends on its place in the ring.
TEST(VerifyRanks, RanksMayShiftDifferentBlocks) {
  std::vector<Program> programs = pieces_of("ring_shift");
  std::swap(programs[1].tasks[0], programs[1].tasks[1]);
  EXPECT_TRUE(faults_of(programs).empty());
}

TEST(VerifyRanks, MembersMayNameOneCallDifferently) {
  Pair pair;
  pair[0].collective("all_reduce", 0, 4, 0, at_layer(0));
  pair[1].collective("all_reduce", 0, 4, 0, at_layer(7));
  pair.on_both("all_reduce", 4, at_layer(3));
  EXPECT_TRUE(faults_of(pair.take()).empty());
}

TEST(VerifyRanks, FindsDifferentOps) {
  Pair pair;
  pair[0].collective("broadcast", 0, 4, 0, at_layer(1));
  pair[1].collective("reduce", 0, 4, 0, at_layer(1));
  EXPECT_THAT(fault_of(pair.take()),
              AllOf(HasSubstr("broadcast root=0"), HasSubstr("reduce root=0")));
}

/// Changes the only operand type of a task for good.
void set_operand(Program& program, TaskId task, DType dtype, int64_t elems) {
  OpSpec spec = program.spec(program.tasks[task.index()]);
  spec.operands[0].dtype = dtype;
  spec.operands[0].shape = {elems};
  program.tasks[task.index()].spec = program.specs.intern(spec);
}

TEST(VerifyRanks, FindsAWrongDtype) {
  Pair pair;
  pair[0].send({.peer = 1, .elems = 4}, 0, at_microbatch(2));
  pair[1].recv({.peer = 0, .elems = 4}, 0, at_microbatch(2));
  std::vector<Program> programs = pair.take();
  EXPECT_TRUE(faults_of(programs).empty());
  set_operand(programs[1], TaskId(size_t{0}), DType::kBF16, 4);
  EXPECT_EQ(fault_of(programs),
            "group pair, messages from rank 0 to rank 1 on channel 0, message 1: rank 0 task 0 "
            "(send mb=2) has f32 [4], but rank 1 task 0 (recv mb=2) has bf16 [4]");
}

TEST(VerifyRanks, FindsAWrongShape) {
  Pair pair;
  pair[0].send({.peer = 1, .elems = 4}, 0);
  pair[0].send({.peer = 1, .elems = 4}, 0);
  pair[1].recv({.peer = 0, .elems = 4}, 0);
  pair[1].recv({.peer = 0, .elems = 3}, 0);
  EXPECT_THAT(fault_of(pair.take()),
              HasSubstr("message 2: rank 0 task 1 (send) has f32 [4], but rank 1 task 1 (recv) has "
                        "f32 [3]"));
}

TEST(VerifyRanks, FindsAMissingSend) {
  Pair pair;
  pair[0].send({.peer = 1}, 0, at_microbatch(0));
  for (const int32_t microbatch : {0, 1}) {
    pair[1].recv({.peer = 0}, 0, at_microbatch(microbatch));
  }
  EXPECT_EQ(fault_of(pair.take()),
            "group pair, messages from rank 0 to rank 1 on channel 0: 1 sends, 2 recvs; rank 1 "
            "task 1 (recv mb=1) has no counterpart");
}

TEST(VerifyRanks, FindsAMissingRecv) {
  Pair pair;
  for (const int32_t microbatch : {0, 1, 2}) {
    pair[0].send({.peer = 1}, 0, at_microbatch(microbatch));
  }
  pair[1].recv({.peer = 0}, 0, at_microbatch(0));
  pair[1].recv({.peer = 0}, 0, at_microbatch(2));
  EXPECT_EQ(
      fault_of(pair.take()),
      "group pair, messages from rank 0 to rank 1 on channel 0: 3 sends, 2 recvs; rank 0 task 1 "
      "(send mb=1) has no counterpart: rank 1 continues with rank 1 task 1 (recv mb=2)");
}

TEST(VerifyRanks, FindsAWrongPeer) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 3; ++rank) {
    RankProgramWriter writer(rank, 3, {"compute"});
    writer.add_group("ring", {0, 1, 2});
    writer.send({.peer = rank == 1 ? 0 : (rank + 1) % 3}, 0);
    writer.recv({.peer = (rank + 2) % 3}, 0);
    programs.push_back(writer.take());
  }
  EXPECT_THAT(faults_of(programs),
              ::testing::UnorderedElementsAre(
                  "group ring, messages from rank 1 to rank 0 on channel 0: 1 sends, 0 recvs; rank "
                  "1 task 0 (send) has no counterpart",
                  "group ring, messages from rank 1 to rank 2 on channel 0: 0 sends, 1 recvs; rank "
                  "2 task 1 (recv) has no counterpart"));
}

TEST(VerifyRanks, FindsAWrongChannel) {
  Pair pair;
  pair[0].send({.peer = 1, .channel = 1}, 0);
  pair[1].recv({.peer = 0, .channel = 0}, 0);
  EXPECT_THAT(faults_of(pair.take()),
              ::testing::UnorderedElementsAre(HasSubstr("on channel 0: 0 sends, 1 recvs"),
                                              HasSubstr("on channel 1: 1 sends, 0 recvs")));
}

TEST(VerifyRanks, FindsSwappedMessages) {
  Pair pair;
  for (const int32_t microbatch : {0, 1}) {
    pair[0].send({.peer = 1}, 0, at_microbatch(microbatch));
    pair[1].recv({.peer = 0}, 0, at_microbatch(1 - microbatch));
  }
  EXPECT_THAT(fault_of(pair.take()),
              HasSubstr("message 1: rank 0 task 0 (send mb=0) meets rank 1 task 0 (recv mb=1), but "
                        "its counterpart is rank 1 task 1 (recv mb=0), message 2"));
}

TEST(VerifyRanks, ThrowsNamingThePass) {
  Pair pair;
  pair[0].send({.peer = 1}, 0);
  const std::vector<Program> programs = pair.take();
  const std::string message = message_of<InternalError>(
      [&] { verify_ranks_or_throw(one_program_per_rank(programs), "assign_streams"); });
  EXPECT_THAT(message,
              StartsWith("the programs of 2 ranks do not fit together after assign_streams: group "
                         "pair, messages from rank 0 to rank 1"));
}

TEST(VerifyRanks, NeedsAProgramOfEachRank) {
  Pair pair;
  std::vector<Program> programs = pair.take();
  std::swap(programs[0], programs[1]);
  EXPECT_THAT(message_of<InternalError>([&] { one_program_per_rank(programs); }),
              HasSubstr("the program of rank 1 is in the place of rank 0"));
  EXPECT_THAT(message_of<InternalError>(
                  [&] { verify_ranks({.programs = {&programs[0]}, .program_of = {0}}); }),
              HasSubstr("one of 2 ranks, but there are 1"));
  EXPECT_THAT(message_of<InternalError>([&] {
                verify_ranks({.programs = {&programs[0]}, .program_of = {0, 1}});
              }),
              HasSubstr("rank 1 has no program"));
}

// Messages on different channels do not wait for each other, unless there are no channels.
TEST(VerifyRanks, FindsMessagesThatNeedChannelsToMeet) {
  const auto programs = [](bool swapped) {
    Pair pair;
    pair[0].send({.peer = 1, .channel = 1}, 0, at_microbatch(0));
    pair[0].send({.peer = 1, .channel = 2}, 1, at_microbatch(0));
    pair[1].recv({.peer = 0, .channel = swapped ? 2 : 1}, 0, at_microbatch(0));
    pair[1].recv({.peer = 0, .channel = swapped ? 1 : 2}, 0, at_microbatch(0));
    return pair.take();
  };
  EXPECT_TRUE(faults_of(programs(true)).empty());
  // On two streams their order is left open.
  EXPECT_THAT(faults_of(programs(false), {.one_order_of_messages = true}).front(),
              HasSubstr("are calls in group pair in no order"));
  Pair pair;
  for (const int64_t channel : {1, 2}) {
    pair[0].send({.peer = 1, .channel = channel}, 0, at_microbatch(0));
    pair[1].recv({.peer = 0, .channel = channel}, 0, at_microbatch(0));
  }
  Pair crossed;
  for (const int64_t channel : {1, 2}) {
    crossed[0].send({.peer = 1, .channel = channel}, 0, at_microbatch(0));
    crossed[1].recv({.peer = 0, .channel = 3 - channel}, 1, at_microbatch(0));
  }
  EXPECT_TRUE(faults_of(pair.take(), {.one_order_of_messages = true}).empty());
  EXPECT_THAT(
      faults_of(crossed.take(), {.one_order_of_messages = true}).front(),
      StartsWith("group pair, messages from rank 0 to rank 1, message 1: rank 0 task 0 (send "
                 "mb=0) has f32 [4] on channel 1, but rank 1 task 0 (recv mb=0) has f32 [4] "
                 "on channel 2"));
}

}  // namespace
}  // namespace braid
