// Counting the rows of experts (moe.watch) and bringing home the losses of routers changes no bit
// of the training, and the numbers are the same for all layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "config/load.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

constexpr int64_t kExperts = 6;
constexpr int64_t kPerToken = 2;
constexpr int64_t kTokens = 8 * 16;  // of a step

RunConfig config_of(std::vector<std::string> more = {}) {
  std::vector<std::string> overrides{
      "model.family=qwen3",  "model.pattern=attention+moe*2,attention+mlp,attention+moe",
      "model.width=32",      "model.heads=4",
      "model.kv_heads=2",    "model.ffn=24",
      "model.experts=6",     "model.experts_per_token=2",
      "model.expert_ffn=10", "model.init_std=0.3",
      "moe.z_loss=0.001",    "train.sequence=16",
      "train.microbatch=2",  "train.global_batch=8",
      "train.dtype=float32", "logging.run_folder=none"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return parse_config("", "expert_watch", overrides);
}

Engine engine_of(RunConfig config) {
  config = resolved(config);
  return Engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
}

BatchLoader loader_of(const SampleSource& source, const RunConfig& config) {
  return BatchLoader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
}

/// What all ranks counted in each of the steps, with an evaluation before each.
std::vector<StepTallies> tallies_of(RunConfig config, int64_t steps) {
  validate(config);
  config = resolved(config);
  Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader = loader_of(source, config);
  std::vector<StepTallies> tallies;
  for (int64_t step = 1; step <= steps; ++step) {
    engine.evaluate(*loader_of(source, config).next());
    engine.train_step(*loader.next(), config.optimizer, 1e-3, step);
    tallies.push_back(engine.tallies());
  }
  return tallies;
}

using Rows = std::map<std::string, std::vector<int64_t>>;

/// Rows of experts by site, of all ranks.
Rows rows_of(const StepTallies& tallies) {
  Rows sums;
  for (const Tally& tally : tallies.tallies) {
    if (tally.place.kind != TallyKind::kExpertRows) {
      continue;
    }
    std::vector<int64_t>& sum = sums[tally.place.site];
    sum.resize(tally.values.size());
    std::ranges::transform(sum, tally.values, sum.begin(), std::plus());
  }
  return sums;
}

std::map<std::string, RouterLossSums> losses_of(const StepTallies& tallies) {
  std::map<std::string, RouterLossSums> sums;
  for (const RouterLossSums& one : tallies.losses) {
    sums[one.site].balance += one.balance;
    sums[one.site].z += one.z;
  }
  return sums;
}

const std::vector<std::vector<std::string>>& layouts() {
  static const std::vector<std::vector<std::string>> list = {
      {"train.microbatch=1"},
      {"memory.recompute=full"},
      {"parallel.ranks=2"},
      {"parallel.ranks=2", "parallel.shard=parameters"},
      {"parallel.ranks=2", "parallel.tensor=2", "parallel.sequence_parallel=true"},
      {"parallel.ranks=2", "parallel.context=2"},
      {"parallel.ranks=2", "parallel.expert=2"},
      {"parallel.ranks=2", "parallel.pipeline=2", "parallel.schedule=interleaved",
       "parallel.virtual_stages=2"},
      {"parallel.ranks=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"},
      {"parallel.ranks=4", "parallel.pipeline=2", "parallel.tensor=2",
       "parallel.sequence_parallel=true", "overlap.mode=off"}};
  return list;
}

TEST(ExpertWatch, CountsEveryRowOfAStepOnce) {
  const std::vector<StepTallies> steps = tallies_of(config_of(), 2);
  for (const StepTallies& step : steps) {
    const Rows rows = rows_of(step);
    EXPECT_EQ(rows.size(), 3u);
    for (const auto& [site, counts] : rows) {
      EXPECT_EQ(counts.size(), static_cast<size_t>(kExperts)) << site;
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), kTokens * kPerToken);
    }
    EXPECT_TRUE(rows.contains("layers.3.moe.sort"));
  }
  EXPECT_NE(rows_of(steps[0]), rows_of(steps[1]));
}

TEST(ExpertWatch, AllLayoutsHaveTheNumbersOfOneRank) {
  const StepTallies whole = tallies_of(config_of(), 1)[0];
  const Rows rows = rows_of(whole);
  const auto losses = losses_of(whole);
  EXPECT_EQ(losses.size(), 3u);
  for (const std::vector<std::string>& layout : thinned(layouts(), 3)) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const StepTallies found = tallies_of(config_of(layout), 1)[0];
    EXPECT_EQ(rows_of(found), rows);
    // Loads of each microbatch are multiplied with its probabilities, so its size matters.
    const bool same_microbatches = layout != layouts().front();
    const auto found_losses = losses_of(found);
    ASSERT_EQ(found_losses.size(), losses.size());
    for (const auto& [site, sums] : losses) {
      EXPECT_NEAR(found_losses.at(site).z, sums.z, 1e-5 * sums.z) << site;
      EXPECT_NEAR(found_losses.at(site).balance, sums.balance,
                  (same_microbatches ? 1e-5 : 0.5) * sums.balance)
          << site;
    }
  }
}

// With weights of 0 all logits are 0: probabilities are equal, whatever the loads.
TEST(ExpertWatch, BalanceLossOfEqualProbabilitiesIsItsCoefficient) {
  const StepTallies tallies = tallies_of(config_of({"model.init_std=1e-9"}), 1)[0];
  for (const auto& [site, sums] : losses_of(tallies)) {
    EXPECT_NEAR(sums.balance, 0.01, 1e-5) << site;
    EXPECT_NEAR(sums.z, 0.001 * std::pow(std::log(6.0), 2), 1e-5) << site;
  }
}

TEST(ExpertWatch, ChangesNoBitOfTheTraining) {
  for (const std::vector<std::string>& layout : thinned(layouts(), 3)) {
    SCOPED_TRACE(testing::PrintToString(layout));
    RunConfig config = config_of(layout);
    const Outcome counting = run(config, 1);
    config.moe.watch = 0;
    expect_same_bits(run(config, 1), counting);
  }
}

// Of 64 rows of a microbatch, four of 6 experts have one more than the others.
TEST(ForceBalance, GivesAllExpertsTheirPart) {
  for (const bool on_two_ranks : {false, true}) {
    std::vector<std::string> keys{"moe.force_balance=true"};
    if (on_two_ranks) {
      keys.insert(keys.end(), {"parallel.ranks=2", "parallel.pipeline=2"});
    }
    const Rows rows = rows_of(tallies_of(config_of(keys), 1)[0]);
    EXPECT_EQ(rows.at("layers.0.moe.sort"), (std::vector<int64_t>{44, 44, 44, 44, 40, 40}));
    EXPECT_EQ(rows.at("layers.3.moe.sort"), (std::vector<int64_t>{44, 40, 40, 44, 44, 44}));
  }
}

TEST(ForceBalance, TrainsTheRouterAndSaysWhatItIs) {
  RunConfig config = config_of({"moe.balance_loss=0", "moe.z_loss=0"});
  const Outcome free = run(config, 2);
  config.moe.force_balance = true;
  const Outcome forced = run(config, 2);
  EXPECT_NE(free.losses, forced.losses);
  const Engine engine = engine_of(config);
  ModelState state = forced.state;
  const auto moments =
      elements_of(engine.plan().layout, "layers.0.moe.router.weight", state.exp_avg);
  EXPECT_TRUE(std::ranges::any_of(moments, [](float moment) { return moment != 0; }));
  EXPECT_THAT(describe_run_plan(engine.plan()), testing::HasSubstr("\nnote     moe.force_balance"));
}

TEST(ExpertWatch, ProgramsWithoutItCountNothing) {
  RunConfig config = config_of({"moe.watch=0", "moe.balance_loss=0", "moe.z_loss=0"});
  const Engine plain = engine_of(config);
  const Program& program = plain.plan().ranks.front().programs[0];
  EXPECT_TRUE(tally_ranges(program).empty());
  EXPECT_TRUE(router_loss_ranges(program).empty());
  config.moe.watch = 10;
  const Engine counting = engine_of(config);
  const auto& programs = counting.plan().ranks.front().programs;
  EXPECT_EQ(tally_ranges(programs[0]).size(), 3u);
  EXPECT_TRUE(tally_ranges(programs[1]).empty());                 // an evaluation
  EXPECT_EQ(programs[0].tasks.size(), program.tasks.size() + 1);  // which zeroes the numbers
}

}  // namespace
}  // namespace braid
