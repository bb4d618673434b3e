#include "parallel/call_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "support/rank_program_writer.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// What a program is written with, changed one at a time below.
struct Facts {
  int rank = 0;
  std::vector<int> ranks = {0, 1, 2};
  std::string group = "all";
  std::string op = "all_gather";
  int64_t elems = 4;
  int32_t layer = 7;
  int64_t peer = 1;
  int64_t channel = 0;
  size_t stream = 1;
  bool waits_for_first = false;
  bool swaps = false;
  int num_unseen = 0;  // tasks that nobody waits for
};

Program program_of(const Facts& facts) {
  RankProgramWriter writer(facts.rank, 3, {"compute", "comm"});
  const size_t group = writer.add_group(facts.group, facts.ranks);
  const TaskId first = writer.compute(0);
  for (int i = 0; i < facts.num_unseen; ++i) {
    writer.compute(0);
  }
  const TaskId second = writer.compute(0);
  const auto collective = [&] {
    return writer.collective(facts.op, group, facts.elems, facts.stream,
                             {.phase = Phase::kComm, .layer = facts.layer});
  };
  const auto send = [&] {
    return writer.send({.group = group, .peer = facts.peer, .channel = facts.channel}, 1);
  };
  const TaskId call = facts.swaps ? send() : collective();
  facts.swaps ? collective() : send();
  writer.wait(call, facts.waits_for_first ? first : second);
  return writer.take();
}

uint64_t hash_of(const Facts& facts) {
  return hash_of_lines(call_lines(program_of(facts)));
}

TEST(CallLines, SayWhatOtherRanksSee) {
  const std::vector<std::string> lines = call_lines(program_of({}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "a task, stream 0 compute, recorded");
  EXPECT_THAT(lines[1],
              AllOf(HasSubstr("all_gather layers.7 comm f32[4] f32[12]"),
                    HasSubstr("in group all of 3"), HasSubstr(", stream 1 comm, waits for 1 up")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("send comm peer=1 channel=0"), HasSubstr("stream 1")));
}

TEST(CallLines, LeaveOutWhoTheRankIsAndWhatNobodyWaitsFor) {
  const uint64_t hash = hash_of({});
  EXPECT_EQ(hash_of({.rank = 2}), hash);
  EXPECT_EQ(hash_of({.ranks = {2, 1, 0}}), hash);
  EXPECT_EQ(hash_of({.num_unseen = 3}), hash);
}

TEST(CallLines, DifferWhereRanksWouldNotMeetAsBefore) {
  std::set<uint64_t> hashes;
  const std::vector<Facts> all = {{},
                                  {.ranks = {0, 1}},
                                  {.group = "other"},
                                  {.op = "all_reduce"},
                                  {.elems = 5},
                                  {.layer = 8},
                                  {.peer = 2},
                                  {.channel = 1},
                                  {.stream = 0},
                                  {.waits_for_first = true, .num_unseen = 1},
                                  {.swaps = true}};
  for (const Facts& facts : all) {
    hashes.insert(hash_of(facts));
  }
  // Whether the first or the second task records, no other rank can tell.
  EXPECT_EQ(hash_of({.waits_for_first = true, .num_unseen = 1}), hash_of({}));
  EXPECT_EQ(hashes.size(), all.size() - 1);
}

}  // namespace
}  // namespace braid
