// The search, `braid plan`, `braid simulate` and the processes of a run come to the same programs,
// the same step and the same memory, whichever ranks each of them plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "plan/memory_needs.h"
#include "plan/rank_programs.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "support/random_layout.h"
#include "support/thinned.h"
#include "tune/auto_overlap.h"

namespace braid {
namespace {

constexpr const char* kCluster = "h100x8";

/// A search that tries little but orders, which differ most by what is planned.
AutoOverlap found_for(const RunConfig& config, const CostModel& model) {
  RunConfig searched = config;
  searched.overlap = {};
  searched.overlap.cost = kCluster;
  validate(searched);
  return auto_overlap(resolve_run(searched, 0), model, {.max_trials = 4, .num_threads = 1});
}

int64_t needed_bytes(const SimulatedRun& run) {
  int64_t most = 0;
  for (const StageMemory& stage : run.memory_by_stage()) {
    most = std::max(most, stage.needed_bytes);
  }
  return most;
}

class Promise : public testing::TestWithParam<uint64_t> {};

TEST_P(Promise, IsWhatThePlanTheSimulationAndTheRunHave) {
  const RandomRun random = random_run(GetParam());
  SCOPED_TRACE(random.words);
  const auto model = make_analytic_model(parse_cluster(kCluster));
  const AutoOverlap found = found_for(random.config, *model);
  EXPECT_LE(found.chosen.step_ns, found.off.step_ns);
  EXPECT_LE(found.chosen.step_ns, found.defaults.step_ns);
  const SimulatedRun simulated(found.run, *model);
  EXPECT_EQ(simulated.step_ns(), found.chosen.step_ns);
  EXPECT_EQ(needed_bytes(simulated), found.chosen.needed_bytes);
  const int num_ranks = found.run.mesh.num_ranks();
  const int other = static_cast<int>(GetParam() % static_cast<uint64_t>(num_ranks));
  const RunPlan all = plan_run(found.run);
  const auto expect_same = [&](const RunPlan& part) {
    for (const RankPlan& rank : part.ranks) {
      const RankPlan& same = plan_of_rank(all, rank.programs[kTrainProgram].rank);
      EXPECT_TRUE(rank.programs == same.programs) << "rank " << same.programs.front().rank;
      EXPECT_EQ(rank.memory.peak_bytes(), same.memory.peak_bytes());
    }
  };
  expect_same(simulated.plan());
  expect_same(plan_run(found.run, {.one_rank_per_stage = true}));
  expect_same(plan_run(found.run, {.ranks = {other}}));
}

std::vector<uint64_t> seeds() {
  std::vector<uint64_t> seeds(60);
  std::iota(seeds.begin(), seeds.end(), uint64_t{1});
  return thinned(std::move(seeds), 20);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Promise, testing::ValuesIn(seeds()));

}  // namespace
}  // namespace braid
