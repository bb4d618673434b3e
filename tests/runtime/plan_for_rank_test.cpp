// What a process plans that runs one rank of several, beside what one process plans that runs all.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/expect_error.h"
#include "parity/layout_config.h"
#include "plan/rank_programs.h"
#include "runtime/host_needs.h"
#include "state/state_map.h"
#include "support/random_layout.h"

namespace braid {
namespace {

auto facts(const StateBufferFacts& buffer) {
  return std::tuple(buffer.kind, buffer.name, buffer.rank, buffer.dtype, buffer.has_gaps);
}

auto facts(const StateRun& run) {
  return std::tuple(run.unit_begin, run.num_elems, run.rank, run.buffer, run.buffer_begin);
}

template <class Value>
using Facts = decltype(facts(Value()));

struct MapFacts {
  std::vector<Facts<StateBufferFacts>> buffers;
  std::vector<Facts<StateRun>> runs;

  MapFacts(const StateMap& map, const ParameterLayout& layout) {
    for (const StateBufferFacts& buffer : map.buffers()) {
      buffers.push_back(facts(buffer));
    }
    for (size_t kind = 0; kind < kNumStateBuffers; ++kind) {
      for (size_t unit = 0; unit < layout.units.size(); ++unit) {
        map.for_each_copy(static_cast<StateBuffer>(kind), unit, 0, layout.units[unit].num_elems,
                          [&](const StateRun& run) { runs.push_back(facts(run)); });
      }
    }
  }
  friend bool operator==(const MapFacts&, const MapFacts&) = default;
};

/// The programs and the memory that the whole run has for each planned rank, and its map of the
/// state; few other ranks.
void expect_part_of_whole(const RunConfig& config) {
  const RunPlan whole = plan_run(resolve_run(config, 0));
  const MapFacts state(make_state_map(whole), whole.layout);
  ASSERT_FALSE(state.runs.empty());
  for (int rank = 0; rank < whole.run.mesh.num_ranks(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const RunPlan part = plan_for_rank(resolve_run(config, 0), rank);
    EXPECT_LE(static_cast<int64_t>(part.ranks.size()), config.parallel.pipeline + 1);
    const RankPlan& own = plan_of_rank(part, rank);
    const RankPlan& same = plan_of_rank(whole, rank);
    EXPECT_TRUE(own.programs == same.programs);
    EXPECT_EQ(own.memory.peak_bytes(), same.memory.peak_bytes());
    EXPECT_TRUE(MapFacts(make_state_map(part), part.layout) == state);
  }
}

TEST(PlanForRank, IsPartOfTheWholeRun) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    RandomRun run = random_run(seed);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, run.words));
    expect_part_of_whole(run.config);
    run.config.overlap.mode = "auto";
    run.config.overlap.comm_engine = "copy";
    expect_part_of_whole(run.config);
  }
}

TEST(PlanForRank, IsThatRankAndOnePerStage) {
  const RunConfig config = config_of(
      {kLlamaModel, "ranks=16 pipeline=4 tensor=2 sequence_parallel=true shard=gradients"});
  const RunPlan plan = plan_for_rank(resolve_run(config, 0), 6);
  std::vector<int> ranks;
  for (const RankPlan& rank : plan.ranks) {
    ranks.push_back(rank.programs[kTrainProgram].rank);
  }
  std::vector<int> expected = first_rank_of_stages(plan.run.mesh);
  expected.push_back(6);
  std::ranges::sort(expected);
  EXPECT_EQ(ranks, expected);
  EXPECT_TRUE(message_of<InternalError>([&] {
                plan_of_rank(plan, 7);
              }).starts_with("rank 7 is not planned"));
}

// Ranks that are not planned count as those that stand for them: stages differ in memory.
TEST(PlanForRank, CountsTheMemoryOfAllRanks) {
  for (const char* const layout : {"ranks=6 pipeline=2 shard=optimizer", "ranks=3"}) {
    SCOPED_TRACE(layout);
    const RunConfig config =
        config_of({kLlamaModel, layout + std::string(" train.global_batch=12")});
    const int64_t whole = cpu_needs(plan_run(resolve_run(config, 0)), 2).bytes();
    for (int rank = 0; rank < config.parallel.ranks; ++rank) {
      EXPECT_EQ(cpu_needs(plan_for_rank(resolve_run(config, 0), rank), 2).bytes(), whole) << rank;
    }
  }
}

// The leading ranks decide for all, so processes need not tell each other what they plan.
TEST(PlanForRank, HasTheOrderThatIsChosenForAllRanks) {
  for (const char* const layout :
       {"ranks=4 pipeline=2", "ranks=8 pipeline=2 tensor=2 sequence_parallel=true shard=optimizer",
        "ranks=4 context=2 shard=parameters"}) {
    SCOPED_TRACE(layout);
    RunConfig config = config_of({kLlamaModel, layout});
    config.overlap.cost = "h200x8";
    config.overlap.list_schedule = true;
    const RunPlan whole = plan_run(resolve_run(config, 0));
    const size_t num_leaders = leading_ranks(whole.run.mesh).size();
    for (int rank = 0; rank < whole.run.mesh.num_ranks(); ++rank) {
      SCOPED_TRACE(rank);
      const RunPlan part = plan_for_rank(resolve_run(config, 0), rank);
      EXPECT_LE(part.ranks.size(), num_leaders + 1);
      for (const RankPlan& each : part.ranks) {
        const RankPlan& same = plan_of_rank(whole, each.programs[kTrainProgram].rank);
        EXPECT_TRUE(each.programs == same.programs);
        EXPECT_EQ(each.memory.peak_bytes(), same.memory.peak_bytes());
      }
      EXPECT_TRUE(MapFacts(make_state_map(part), part.layout) ==
                  MapFacts(make_state_map(whole), whole.layout));
    }
  }
}

TEST(PlanForRank, PlansTheLeadingRanksWhereTheyChooseAnOrder) {
  RunConfig config = config_of({kLlamaModel, "ranks=8 pipeline=2 tensor=2"});
  const auto planned = [&] {
    std::vector<int> ranks;
    for (const RankPlan& rank : plan_for_rank(resolve_run(config, 0), 7).ranks) {
      ranks.push_back(rank.programs[kTrainProgram].rank);
    }
    return ranks;
  };
  EXPECT_EQ(planned(), (std::vector{0, 4, 7}));
  config.overlap.cost = "h200x8";
  config.overlap.list_schedule = true;
  EXPECT_EQ(planned(), (std::vector{0, 4, 7}));
  config = config_of({kLlamaModel, "ranks=8 context=4 train.sequence=16"});
  config.overlap.cost = "h200x8";
  config.overlap.list_schedule = true;
  EXPECT_EQ(planned().size(), 5u);  // one of each of four places, and rank 7
}

}  // namespace
}  // namespace braid
