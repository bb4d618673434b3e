// Steps and evaluations that lack room for rows of experts run again with more: their results are
// the bits of a run that has room for all rows from its beginning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "config/load.h"
#include "ops/expert_exchange.h"
#include "plan/more_room.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;

RunConfig config_of(const Keys& layout, const Keys& more) {
  Keys keys{"model.family=qwen3",     "model.pattern=attention+moe*2,attention+mlp,attention+moe",
            "model.width=32",         "model.heads=4",
            "model.kv_heads=2",       "model.ffn=24",
            "model.experts=8",        "model.experts_per_token=2",
            "model.expert_ffn=8",     "model.init_std=0.3",
            "train.sequence=16",      "train.microbatch=2",
            "train.global_batch=8",   "train.dtype=float32",
            "logging.run_folder=none"};
  keys.insert(keys.end(), layout.begin(), layout.end());
  keys.insert(keys.end(), more.begin(), more.end());
  RunConfig config = parse_config("", "overflow", keys);
  validate(config);
  return resolved(config);
}

struct Results {
  Outcome outcome;
  std::vector<double> evaluations;
  std::vector<int64_t> reruns;  ///< by step
  std::vector<StepTallies> tallies;
  double capacity = 0;  ///< in the end
};

/// Three steps, with an evaluation before each if asked for.
Results results_of(const RunConfig& config, bool evaluates = false) {
  Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  const BatchShape shape{.num_ranks = config.parallel.data,
                         .num_microbatches = num_microbatches(config),
                         .microbatch = microbatch_sequences(config)};
  BatchLoader loader(source, {.shape = shape});
  Results results;
  for (int64_t step = 1; step <= 3; ++step) {
    if (evaluates) {
      BatchLoader held_out(source, {.shape = shape, .consumed_samples = 1000 * step});
      results.evaluations.push_back(engine.evaluate(*held_out.next()).loss);
    }
    const StepResult result = engine.train_step(*loader.next(), config.optimizer, 3e-3, step);
    results.outcome.losses.push_back(result.loss);
    results.outcome.grad_norms.push_back(result.grad_norm);
    results.reruns.push_back(result.reruns);
    results.tallies.push_back(engine.tallies());
  }
  results.outcome.state = state_of(engine);
  results.capacity = engine.plan().run.parallel.expert_capacity;
  return results;
}

const std::vector<Keys>& layouts() {
  static const std::vector<Keys> list = {
      {"parallel.ranks=2", "parallel.expert=2"},
      {"parallel.ranks=4", "parallel.expert=4", "parallel.shard=optimizer"},
      {"parallel.ranks=4", "parallel.expert=2", "parallel.expert_tensor=2",
       "parallel.shard=parameters"},
      {"parallel.ranks=4", "parallel.tensor=2", "parallel.sequence_parallel=true",
       "parallel.expert=4", "memory.recompute=full"},
      {"parallel.ranks=4", "parallel.pipeline=2", "parallel.expert=2", "train.microbatch=1"},
      {"parallel.ranks=4", "parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.expert=2",
       "overlap.mode=off"},
      {"parallel.ranks=2", "parallel.expert=2", "model.router_bias=true",
       "model.router_scores=sigmoid", "moe.bias_update_rate=0.1", "train.dtype=bfloat16",
       "optimizer.moments_dtype=bfloat16"}};
  return list;
}

/// How rows are exchanged: moe.exchange.
const Keys kExchanges{"moe.exchange=direct", "moe.exchange=blocks"};

TEST(Overflow, StepsRunAgainWithTheBitsOfEnoughRoom) {
  for (const Keys& layout : thinned(layouts(), 4)) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const Results ample = results_of(config_of(layout, {}));
    EXPECT_EQ(ample.reruns, (std::vector<int64_t>{0, 0, 0}));
    for (const std::string& exchange : kExchanges) {
      const Results tight = results_of(config_of(layout, {"moe.capacity=0.3", exchange}));
      expect_same_bits(tight.outcome, ample.outcome);
      EXPECT_GE(tight.reruns[0], 2);  // 0.3 and 0.6 are less than equal loads
      EXPECT_TRUE(tight.capacity == 0 || tight.capacity >= 1.2);
    }
  }
}

TEST(Overflow, BlocksWithRoomForAllRowsHaveTheBitsOfADirectExchange) {
  for (const Keys& layout : thinned(layouts(), 4)) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const Results blocks = results_of(config_of(layout, {"moe.exchange=blocks"}));
    expect_same_bits(blocks.outcome, results_of(config_of(layout, {})).outcome);
    EXPECT_EQ(blocks.reruns, (std::vector<int64_t>{0, 0, 0}));
  }
}

// One copy of a token for each of two hosts: too few slots, or too few rows behind them.
TEST(Overflow, StepsOverHostsRunAgainWithTheBitsOfEnoughRoom) {
  const Keys over_hosts{"moe.exchange=hosts", "moe.exchange_hosts=2"};
  for (const Keys& layout : layouts()) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const Results ample = results_of(config_of(layout, over_hosts));
    EXPECT_EQ(ample.reruns, (std::vector<int64_t>{0, 0, 0}));
    for (const double loss : ample.outcome.losses) {
      EXPECT_FALSE(std::isnan(loss));
    }
    Keys tight_keys = over_hosts;
    tight_keys.emplace_back("moe.capacity=0.3");
    const Results tight = results_of(config_of(layout, tight_keys));
    expect_same_bits(tight.outcome, ample.outcome);
    EXPECT_GE(tight.reruns[0], 2);
  }
}

TEST(Overflow, EvaluationsRunAgain) {
  for (size_t i = 0; i < 2; ++i) {
    const Keys& layout = layouts()[4 * i];
    const Results ample = results_of(config_of(layout, {}), true);
    const Results tight = results_of(config_of(layout, {"moe.capacity=0.3", kExchanges[i]}), true);
    EXPECT_EQ(tight.evaluations, ample.evaluations);
    EXPECT_FALSE(std::isnan(ample.evaluations[0]));
    expect_same_bits(tight.outcome, ample.outcome);
  }
}

/// With room for all but the busiest steps, a later step may be the first one to run again.
void expect_only_steps_that_lack_room(const std::string& exchange, double less_capacity) {
  const Keys layout{"parallel.ranks=4", "parallel.expert=4", exchange};
  const Results ample = results_of(config_of(layout, {}));
  double capacity = 0;
  std::vector<double> needed;
  for (const StepTallies& step : ample.tallies) {
    double most = 0;
    for (const Tally& tally : step.tallies) {
      if (tally.place.kind == TallyKind::kRowRoom) {
        most = std::max(most, static_cast<double>(tally.values[RoomTally::kMost]) /
                                  static_cast<double>(tally.values[RoomTally::kEqual]));
      }
    }
    needed.push_back(most);
    capacity = std::max(capacity, most);
  }
  const Results enough = results_of(config_of(layout, {fmt::format("moe.capacity={}", capacity)}));
  EXPECT_EQ(enough.reruns, (std::vector<int64_t>{0, 0, 0}));
  const Results less =
      results_of(config_of(layout, {fmt::format("moe.capacity={}", capacity - less_capacity)}));
  int64_t reruns = 0;
  for (size_t step = 0; step < needed.size(); ++step) {
    const bool is_first = reruns == 0 && needed[step] > capacity - less_capacity / 2;
    EXPECT_EQ(less.reruns[step], is_first ? 1 : 0) << step;
    reruns += less.reruns[step];
  }
  EXPECT_EQ(reruns, 1);
  expect_same_bits(less.outcome, ample.outcome);
}

TEST(Overflow, OnlyStepsThatLackRoomRunAgain) {
  expect_only_steps_that_lack_room("moe.exchange=direct", 1.28 / 64);
  // A row less in the block of each of 4 ranks. The room needed is that of the fullest block.
  expect_only_steps_that_lack_room("moe.exchange=blocks", 4.1 / 64);
}

TEST(Overflow, WithErrorTheStepIsNanAndChangesNothing) {
  const Results results =
      results_of(config_of(layouts()[0], {"moe.capacity=0.3", "moe.on_overflow=error"}));
  EXPECT_TRUE(std::isnan(results.outcome.losses[0]));
  EXPECT_EQ(results.reruns, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(results.capacity, 0.3);
  const RunConfig config = config_of(layouts()[0], {});
  const RunPlan plan = plan_run(resolve_run(config, 50));
  EXPECT_EQ(results.outcome.state.weights, initial_state(plan.layout, plan.run.model, 5).weights);
}

/// Sums of RoomTally::kRows and kDropped over ranks, by site.
std::map<std::string, std::pair<int64_t, int64_t>> rows_by_site(const StepTallies& tallies) {
  std::map<std::string, std::pair<int64_t, int64_t>> rows;
  for (const Tally& tally : tallies.tallies) {
    if (tally.place.kind == TallyKind::kRowRoom) {
      rows[tally.place.site].first += tally.values[RoomTally::kRows];
      rows[tally.place.site].second += tally.values[RoomTally::kDropped];
    }
  }
  return rows;
}

TEST(Overflow, DroppedRowsAreCounted) {
  constexpr int64_t kRows = 8 * 16 * 2;  // of a layer and step
  for (const Keys& layout : thinned(layouts(), 4)) {
    SCOPED_TRACE(testing::PrintToString(layout));
    for (const std::string& exchange : kExchanges) {
      const Results dropping =
          results_of(config_of(layout, {"moe.capacity=0.5", "moe.on_overflow=drop", exchange}));
      EXPECT_FALSE(std::isnan(dropping.outcome.losses[2]));
      const auto rows = rows_by_site(dropping.tallies[0]);
      EXPECT_EQ(rows.size(), 3u);
      for (const auto& [site, counts] : rows) {
        EXPECT_EQ(counts.first, kRows) << site;
        EXPECT_GE(counts.second, kRows / 2) << site;
        EXPECT_LT(counts.second, kRows) << site;
      }
      const Results ample = results_of(config_of(layout, {exchange}));
      for (const auto& [site, counts] : rows_by_site(ample.tallies[0])) {
        EXPECT_EQ(counts, (std::pair{kRows, int64_t{0}})) << site;
      }
    }
  }
}

// The rows of each expert say how many rows come to the ranks, and so how many are dropped.
TEST(Overflow, CountsAreThoseThatLoadsImply) {
  const Results results =
      results_of(config_of({"parallel.ranks=2", "parallel.expert=2"},
                           {"moe.capacity=0.8", "moe.on_overflow=drop", "train.microbatch=4"}));
  std::map<std::string, std::vector<int64_t>> loads;  // one microbatch: that of all ranks
  for (const Tally& tally : results.tallies[0].tallies) {
    if (tally.place.kind == TallyKind::kExpertRows) {
      std::vector<int64_t>& sum = loads[tally.place.site.substr(0, 8)];
      sum.resize(8);
      std::ranges::transform(sum, tally.values, sum.begin(), std::plus());
    }
  }
  const auto rows = rows_by_site(results.tallies[0]);
  ASSERT_EQ(loads.size(), 3u);
  for (const auto& [layer, counts] : loads) {
    constexpr int64_t kRoom = 103;  // ceil(0.8 * 4 * 16 * 2)
    int64_t dropped = 0;
    for (size_t first : {size_t{0}, size_t{4}}) {
      const int64_t came =
          counts[first] + counts[first + 1] + counts[first + 2] + counts[first + 3];
      dropped += std::max<int64_t>(0, came - kRoom);
    }
    EXPECT_GT(dropped, 0);
    EXPECT_EQ(rows.at(layer + ".moe.dispatch").second, dropped);
  }
}

// A block has room for half of the 103 rows above, rounded up; the loads of a rank are those of one
// microbatch.
TEST(Overflow, CountsOfBlocksAreThoseThatLoadsOfRanksImply) {
  const Results results = results_of(config_of(
      {"parallel.ranks=2", "parallel.expert=2"},
      {"moe.capacity=0.8", "moe.on_overflow=drop", "train.microbatch=4", "moe.exchange=blocks"}));
  constexpr int64_t kBlockRows = 52;
  std::map<std::string, int64_t> dropped;
  for (const Tally& tally : results.tallies[0].tallies) {
    if (tally.place.kind == TallyKind::kExpertRows) {
      for (const size_t first : {size_t{0}, size_t{4}}) {
        const auto begin = tally.values.begin() + static_cast<ptrdiff_t>(first);
        const int64_t of_pair = std::reduce(begin, begin + 4);
        dropped[tally.place.site.substr(0, 8)] += std::max<int64_t>(0, of_pair - kBlockRows);
      }
    }
  }
  const auto rows = rows_by_site(results.tallies[0]);
  ASSERT_EQ(dropped.size(), 3u);
  for (const auto& [layer, count] : dropped) {
    EXPECT_GT(count, 0);
    EXPECT_EQ(rows.at(layer + ".moe.dispatch").second, count);
  }
}

TEST(Overflow, OneStepIsInFlightWhileRowsMayLackRoom) {
  const auto in_flight = [](const Keys& keys) {
    Engine engine(plan_run(resolve_run(config_of(layouts()[0], keys), 50)), {});
    return engine.max_steps_in_flight();
  };
  EXPECT_EQ(in_flight({"moe.capacity=1"}), 1);
  EXPECT_EQ(in_flight({}), 1);  // on the CPU
}

}  // namespace
}  // namespace braid
