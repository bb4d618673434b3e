#include "backends/step_progress.h"

#include <gmock/gmock.h>

#include <random>

#include "base/expect_error.h"
#include "ir/text.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

/// Of four ranks in two tensor groups and two data groups; its pipeline is ranks 0 and 3.
Program program_of(int rank) {
  const int tensor = rank / 2 * 2;
  const int data = rank % 2;
  return parse_program(
      fmt::format("program step rank={} ranks=4 events=0\n"
                  "stream compute kind=compute priority=0\n"
                  "stream comm.tensor kind=comm priority=1\n"
                  "stream comm.data kind=comm priority=1\n"
                  "group tensor kind=tensor ranks={},{}\n"
                  "group data kind=data ranks={},{}\n"
                  "group alone kind=context ranks={}\n"
                  "buffer x f32 [6] activation persistent device\n"
                  "buffer y f32 [6] activation persistent device\n"
                  "copy(x -> y) compute forward\n"                              // 0
                  "all_reduce(-> rw y) {{group=0}} comm.tensor comm layer=0\n"  // 1
                  "all_reduce(-> rw x) {{group=1}} comm.data comm layer=1\n"    // 2
                  "all_reduce(-> rw y) {{group=2}} comm.data comm\n"            // 3: of one rank
                  "all_reduce(-> rw y) {{group=0}} comm.tensor comm layer=2\n"  // 4
                  "copy(y -> x) compute forward\n"                              // 5
                  "all_reduce(-> rw x) {{group=0}} compute comm layer=3\n",     // 6
                  rank, tensor, tensor + 1, data, data + 2, rank));
}

/// Marks of its streams compute, comm.tensor and comm.data.
RankProgress at(int rank, int64_t step, std::vector<uint32_t> marks) {
  return progress_of(program_of(rank), {.step = step, .program = 0, .marks = std::move(marks)});
}

RankProgress before_all(int rank, int64_t step) {
  return at(rank, step, {kNoMark, kNoMark, kNoMark});
}

TEST(StepProgress, MarksOfAStreamGrow) {
  uint32_t last = kNoMark;
  for (size_t task = 0; task < 100; ++task) {
    EXPECT_LT(last, begin_mark(TaskId(task)));
    EXPECT_LT(begin_mark(TaskId(task)), end_mark(TaskId(task)));
    EXPECT_TRUE(is_begin_mark(begin_mark(TaskId(task))));
    EXPECT_FALSE(is_begin_mark(end_mark(TaskId(task))));
    last = end_mark(TaskId(task));
  }
  EXPECT_FALSE(is_begin_mark(kNoMark));
}

TEST(StepProgress, IsWhatTheMarksSay) {
  const RankProgress none = before_all(0, 7);
  EXPECT_EQ(none.step, 7);
  EXPECT_THAT(none.open, IsEmpty());
  EXPECT_FALSE(none.last);
  EXPECT_EQ(describe_last(none), "");
  EXPECT_THAT(none.num_begun, IsEmpty());

  const RankProgress some = at(2, 5, {kNoMark, begin_mark(TaskId(4)), end_mark(TaskId(2))});
  ASSERT_EQ(some.open.size(), 1u);
  EXPECT_EQ(some.open[0].place, "group tensor");
  EXPECT_THAT(some.open[0].ranks, ElementsAre(2, 3));
  EXPECT_EQ(some.open[0].number, 2);
  EXPECT_EQ(some.open[0].call, "all_reduce of 6 f32 (all_reduce layers.2)");
  EXPECT_EQ(some.open[0].task, "stream comm.tensor, task 4 (all_reduce layers.2)");
  ASSERT_TRUE(some.last);
  EXPECT_EQ(some.last->task, "stream comm.data, task 2 (all_reduce layers.1)");
  EXPECT_EQ(describe_last(some), "stream comm.data, task 2 (all_reduce layers.1) in group data");
  EXPECT_THAT(some.num_begun, ElementsAre(Pair("group data of ranks 0, 2", 1),
                                          Pair("group tensor of ranks 2, 3", 2)));
}

// The program counts, not what has begun: streams may overtake each other.
TEST(StepProgress, CallsOfAGroupAreCountedOverItsStreams) {
  const RankProgress ahead = at(0, 5, {begin_mark(TaskId(6)), begin_mark(TaskId(1)), kNoMark});
  ASSERT_EQ(ahead.open.size(), 2u);
  EXPECT_EQ(ahead.open[0].number, 1);
  EXPECT_EQ(ahead.open[1].number, 3);
  EXPECT_EQ(ahead.open[1].task, "stream compute, task 6 (all_reduce layers.3)");
}

TEST(StepProgress, NamesTheTaskThatWaitsForARankThatFailed) {
  EXPECT_EQ(wait_clause(at(0, 5, {kNoMark, begin_mark(TaskId(4)), begin_mark(TaskId(2))}),
                        "rank 2 (box:7) has ended"),
            ", stream comm.data, task 2 (all_reduce layers.1): in group data: rank 2 (box:7) has "
            "ended");
  EXPECT_EQ(
      wait_clause(at(0, 5, {kNoMark, end_mark(TaskId(4)), end_mark(TaskId(2))}), "it is late"),
      ": it is late");
}

TEST(StepProgress, ARankThatIsBehindIsMissing) {
  const ProgressOfRanks ranks{
      {0, at(0, 5, {kNoMark, begin_mark(TaskId(4)), kNoMark})},
      {1, at(1, 5, {kNoMark, end_mark(TaskId(1)), kNoMark})},
  };
  EXPECT_EQ(wait_clause(0, ranks),
            ", stream comm.tensor, task 4 (all_reduce layers.2): waits with all_reduce of 6 f32 "
            "(all_reduce layers.2) in group tensor, call 2, for rank 1; rank 1: in step 5, last "
            "call all_reduce of 6 f32 (all_reduce layers.0) in group tensor, call 1, finished");
  EXPECT_EQ(wait_clause(1, ranks),
            ": waits for no other rank, in step 5, last call all_reduce of 6 f32 (all_reduce "
            "layers.0) in group tensor, call 1, finished");
}

TEST(StepProgress, ARankInAnEarlierStepIsMissingAndOneInALaterStepIsNot) {
  ProgressOfRanks ranks{{0, at(0, 5, {kNoMark, begin_mark(TaskId(1)), kNoMark})},
                        {1, at(1, 4, {end_mark(TaskId(6)), end_mark(TaskId(4)), kNoMark})}};
  EXPECT_THAT(wait_clause(0, ranks), HasSubstr("call 1, for rank 1; rank 1: in step 4, last call"));
  ranks[1] = before_all(1, 6);
  EXPECT_THAT(wait_clause(0, ranks), HasSubstr("call 1, which all of its ranks have begun"));
  ranks[1] = before_all(1, -1);
  EXPECT_THAT(wait_clause(0, ranks), HasSubstr("call 1, for rank 1; rank 1: no step yet"));
  ranks.erase(1);
  EXPECT_THAT(wait_clause(0, ranks), HasSubstr("call 1, for rank 1; rank 1: does not answer"));
}

// Rank 0 waits for rank 2, which waits for rank 3.
TEST(StepProgress, FollowsTheRanksThatWaitForOthers) {
  const ProgressOfRanks ranks{{0, at(0, 5, {kNoMark, end_mark(TaskId(4)), begin_mark(TaskId(2))})},
                              {1, at(1, 5, {kNoMark, end_mark(TaskId(4)), begin_mark(TaskId(2))})},
                              {2, at(2, 5, {kNoMark, begin_mark(TaskId(1)), kNoMark})},
                              {3, before_all(3, 5)}};
  EXPECT_EQ(wait_clause(0, ranks),
            ", stream comm.data, task 2 (all_reduce layers.1): waits with all_reduce of 6 f32 "
            "(all_reduce layers.1) in group data, call 1, for rank 2; rank 2: in step 5, waits "
            "with all_reduce of 6 f32 (all_reduce layers.0) in group tensor, call 1 for rank 3; "
            "rank 3: in step 5, no call yet");
}

// Two tasks wait, the first one for nobody: its bytes are on their way.
TEST(StepProgress, TheFirstTaskWithSomebodyMissingIsNamed) {
  const ProgressOfRanks ranks{
      {0, at(0, 5, {kNoMark, begin_mark(TaskId(1)), begin_mark(TaskId(2))})},
      {1, at(1, 5, {kNoMark, begin_mark(TaskId(1)), kNoMark})},
      {2, at(2, 5, {kNoMark, begin_mark(TaskId(1)), kNoMark})},
  };
  EXPECT_THAT(wait_clause(0, ranks), ::testing::StartsWith(", stream comm.data, task 2"));
  EXPECT_THAT(wait_clause(0, ranks),
              HasSubstr("for rank 2; rank 2: in step 5, waits with all_reduce of 6 f32 (all_reduce "
                        "layers.0) in group tensor, call 1 for rank 3; rank 3: does not answer"));
}

TEST(StepProgress, RanksThatWaitForEachOtherAreSaidTo) {
  const ProgressOfRanks ranks{
      {0, at(0, 5, {kNoMark, begin_mark(TaskId(1)), kNoMark})},
      {1, at(1, 5, {kNoMark, kNoMark, begin_mark(TaskId(2))})},
      {3, at(3, 5, {kNoMark, kNoMark, kNoMark})},
  };
  EXPECT_THAT(wait_clause(0, ranks), HasSubstr("rank 3: in step 5, no call yet"));
  EXPECT_THAT(wait_clause(0, ranks), ::testing::Not(HasSubstr("wait for each other")));
  ProgressOfRanks crossed = ranks;
  crossed[3] = at(3, 5, {kNoMark, begin_mark(TaskId(1)), kNoMark});
  crossed[2] = at(2, 5, {kNoMark, kNoMark, begin_mark(TaskId(2))});
  EXPECT_THAT(wait_clause(0, crossed),
              ::testing::EndsWith("; all of these ranks wait for each other"));
}

/// Messages from rank 0 to rank 1 in two channels.
Program messages_of(int rank) {
  const std::string op = rank == 0 ? "send(x" : "recv(-> x";
  const auto task = [&](int channel) {
    return fmt::format("{}) {{group=0, peer={}, channel={}}} p2p{} comm\n", op, 1 - rank, channel,
                       channel);
  };
  return parse_program(fmt::format("program step rank={} ranks=2 events=0\n"
                                   "stream p2p0 kind=comm priority=1\n"
                                   "stream p2p1 kind=comm priority=1\n"
                                   "group pipeline kind=pipeline ranks=0,1\n"
                                   "buffer x f32 [6] activation persistent device\n",
                                   rank) +
                       task(0) + task(1) + task(0));
}

TEST(StepProgress, MessagesMeetThoseOfTheirChannel) {
  const auto in = [](int rank, uint32_t first, uint32_t second) {
    return progress_of(messages_of(rank), {.step = 1, .program = 0, .marks = {first, second}});
  };
  const RankProgress sender = in(0, begin_mark(TaskId(2)), begin_mark(TaskId(1)));
  EXPECT_EQ(sender.open[0].place, "group pipeline, channel 1 from rank 0 to rank 1");
  EXPECT_EQ(sender.open[1].number, 2);
  EXPECT_THAT(wait_clause(0, {{0, sender}, {1, in(1, end_mark(TaskId(0)), begin_mark(TaskId(1)))}}),
              ::testing::StartsWith(", stream p2p0, task 2 (send): waits with send of 6 f32 (send) "
                                    "in group pipeline, channel 0 from rank 0 to rank 1, call 2, "
                                    "for rank 1; rank 1: in step 1, is busy with recv"));
}

TEST(StepProgress, CrossesProcesses) {
  const RankProgress sent = at(2, 5, {kNoMark, begin_mark(TaskId(4)), end_mark(TaskId(2))});
  const std::string bytes = to_bytes(sent);
  const RankProgress got = progress_from_bytes(bytes);
  EXPECT_EQ(to_bytes(got), bytes);
  EXPECT_EQ(got.step, 5);
  EXPECT_EQ(wait_clause(2, {{2, got}}), wait_clause(2, {{2, sent}}));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(progress_from_bytes(std::string_view(bytes).substr(0, size)), DeviceError);
  }
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {  // whatever it is, no more memory than it has bytes
    std::string noise = bytes;
    noise[random() % noise.size()] = static_cast<char>(random());
    try {
      progress_from_bytes(noise);
    } catch (const DeviceError&) {
    }
  }
}

}  // namespace
}  // namespace braid
