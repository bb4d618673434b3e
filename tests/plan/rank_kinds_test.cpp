#include "plan/rank_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/expect_error.h"
#include "parallel/call_lines.h"
#include "parity/layout_config.h"
#include "plan/rank_programs.h"
#include "support/random_layout.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<ShownCalls> shown_by(const RunPlan& whole) {
  std::vector<ShownCalls> shown;
  for (const RankPlan& rank : whole.ranks) {
    shown.push_back(shown_calls(rank));
  }
  return shown;
}

/// The rank of each kind that stands for a rank makes the same calls, whoever plans it.
void expect_kinds_of(const PlannedKinds& kinds, const RunPlan& whole) {
  ASSERT_EQ(kinds.alike.kind_of.size(), whole.ranks.size());
  for (size_t rank = 0; rank < whole.ranks.size(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    for (const size_t program : {kTrainProgram, kEvalProgram}) {
      EXPECT_EQ(call_lines(kinds.of_rank(static_cast<int>(rank)).programs[program]),
                call_lines(whole.ranks[rank].programs[program]));
    }
  }
}

TEST(RankKinds, OneOfEachStandsForAll) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const RandomRun run = random_run(seed);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, run.words));
    const RunPlan whole = plan_run(resolve_run(run.config, 0));
    const AlikeRanks alike = alike_ranks(shown_by(whole));
    const RunPlan part = plan_for_rank(resolve_run(run.config, 0), 0);
    const PlannedKinds kinds = plan_kinds(part, alike);
    expect_kinds_of(kinds, whole);
    verify_kinds(whole.run.mesh, kinds);
    const PlannedKinds every = plan_every_rank(resolve_run(run.config, 0));
    expect_kinds_of(every, whole);
    EXPECT_EQ(every.alike.num_kinds(), kinds.alike.num_kinds());
    EXPECT_EQ(every.ranks.size(), every.alike.num_kinds());
    verify_kinds(whole.run.mesh, every);
  }
}

TEST(RankKinds, AreFewHoweverManyTheRanks) {
  for (const char* const data : {"4", "16"}) {
    const RunConfig config =
        config_of({kLlamaModel, fmt::format("ranks={} tensor=2 sequence_parallel=true pipeline=2 "
                                            "shard=optimizer train.global_batch=32",
                                            4 * std::stoi(data))});
    const PlannedKinds kinds = plan_every_rank(resolve_run(config, 0));
    EXPECT_EQ(kinds.alike.kind_of.size(), static_cast<size_t>(4 * std::stoi(data)));
    EXPECT_LE(kinds.alike.num_kinds(), 12u) << data;
  }
}

TEST(RankKinds, AreThoseOfTheWholeRunWhereOrdersAreChosenForAllRanks) {
  RunConfig config = config_of({kLlamaModel, "ranks=4 pipeline=2"});
  config.overlap.cost = "h200x8";
  config.overlap.list_schedule = true;
  expect_kinds_of(plan_every_rank(resolve_run(config, 0)), plan_run(resolve_run(config, 0)));
}

TEST(RankKinds, CallsThatDoNotMeetAreRefused) {
  const RunConfig config = config_of({kLlamaModel, "ranks=4 pipeline=2"});
  PlannedKinds kinds = plan_every_rank(resolve_run(config, 0));
  ASSERT_EQ(kinds.ranks.size(), 2u);
  Program& program = kinds.ranks[1].programs[kTrainProgram];
  for (Task& task : program.tasks) {
    if (program.spec(task).op == "send") {
      OpSpec other = program.spec(task);
      other.attributes.back().value = int64_t{5};  // another channel
      task.spec = program.specs.intern(other);
      break;
    }
  }
  EXPECT_THAT(
      message_of<InternalError>([&] { verify_kinds(Mesh({.data = 2, .pipeline = 2}), kinds); }),
      AllOf(HasSubstr("the programs of 4 ranks do not fit together"), HasSubstr("rank 2"),
            HasSubstr("send"), HasSubstr("pipeline.backward")));
}

TEST(RankKinds, GroupsAreThoseOfTheMesh) {
  const RunConfig config = config_of({kLlamaModel, "ranks=4 pipeline=2"});
  RunPlan plan = plan_for_rank(resolve_run(config, 0), 1);
  EXPECT_NO_THROW(check_groups(plan.run.mesh, plan_of_rank(plan, 1)));
  plan.ranks[1].programs[kTrainProgram].groups.front().ranks.back() = 2;
  EXPECT_THAT(
      message_of<InternalError>([&] { check_groups(plan.run.mesh, plan_of_rank(plan, 1)); }),
      HasSubstr("of rank 1 is not that of the mesh"));
}

}  // namespace
}  // namespace braid
