// Experts that take a limited number of rows (moe.expert_capacity).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "ops/expert_exchange.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;

constexpr int64_t kExperts = 8;
constexpr int64_t kTokens = 2 * 16;  // of a rank in a microbatch

RunConfig config_of(const Keys& more) {
  Keys keys{"model.family=qwen3",     "model.pattern=attention+moe*2,attention+mlp,attention+moe",
            "model.width=32",         "model.heads=4",
            "model.kv_heads=2",       "model.ffn=24",
            "model.experts=8",        "model.experts_per_token=2",
            "model.expert_ffn=8",     "model.init_std=0.3",
            "train.sequence=16",      "train.microbatch=2",
            "train.global_batch=4",   "train.dtype=float32",
            "logging.run_folder=none"};
  keys.insert(keys.end(), more.begin(), more.end());
  return parse_config("", "expert_capacity", keys);
}

struct Results {
  StepTallies tallies;  ///< of the first step
  double loss = 0;
  double evaluation = 0;
};

Results results_of(RunConfig config) {
  validate(config);
  config = resolved(config);
  Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  const auto batch = loader.next();
  Results results;
  results.evaluation = engine.evaluate(*batch).loss;
  results.loss = engine.train_step(*batch, config.optimizer, 3e-3, 1).loss;
  results.tallies = engine.tallies();
  return results;
}

/// By layer: rows of each expert, and dropped rows, of all ranks.
struct LayerRows {
  std::vector<std::vector<int64_t>> chosen;  ///< of each rank
  int64_t dropped = 0;
};

std::map<std::string, LayerRows> rows_of(const StepTallies& tallies) {
  std::map<std::string, LayerRows> layers;
  for (const Tally& tally : tallies.tallies) {
    LayerRows& layer = layers[tally.place.site.substr(0, 8)];
    if (tally.place.kind == TallyKind::kExpertRows) {
      layer.chosen.push_back(tally.values);
    } else if (tally.place.kind == TallyKind::kRowRoom) {
      EXPECT_TRUE(tally.place.site.ends_with(".moe.drop")) << tally.place.site;
      layer.dropped += tally.values[RoomTally::kDropped];
    }
  }
  return layers;
}

// One microbatch on each of two ranks, so the rows of experts say what each drops.
TEST(ExpertCapacity, DropsWhatIsAboveIt) {
  constexpr int64_t kTaken = 6;  // ceil(0.75 * kTokens * 2 / kExperts)
  for (const Keys& layout : {Keys{}, Keys{"parallel.expert=2"}}) {
    Keys keys{"moe.expert_capacity=0.75", "parallel.ranks=2"};
    keys.insert(keys.end(), layout.begin(), layout.end());
    const auto layers = rows_of(results_of(config_of(keys)).tallies);
    ASSERT_EQ(layers.size(), 3u);
    for (const auto& [name, layer] : layers) {
      int64_t dropped = 0;
      ASSERT_EQ(layer.chosen.size(), 2u);
      for (const std::vector<int64_t>& rank : layer.chosen) {
        ASSERT_EQ(std::ssize(rank), kExperts);
        for (const int64_t rows : rank) {
          dropped += std::max<int64_t>(0, rows - kTaken);
        }
      }
      EXPECT_GE(dropped, 2 * (kTokens * 2 - kExperts * kTaken)) << name;
      EXPECT_EQ(layer.dropped, dropped) << name;
    }
  }
}

TEST(ExpertCapacity, WithRoomForAllRowsChangesNoBit) {
  for (const Keys& layout :
       {Keys{}, Keys{"parallel.ranks=2", "parallel.expert=2"},
        Keys{"parallel.ranks=2", "parallel.tensor=2", "parallel.sequence_parallel=true",
             "parallel.expert=2", "train.dtype=bfloat16"}}) {
    SCOPED_TRACE(testing::PrintToString(layout));
    Keys keys = layout;
    const Outcome plain = run(config_of(keys), 3);
    keys.emplace_back("moe.expert_capacity=100");
    expect_same_bits(run(config_of(keys), 3), plain);
    keys.emplace_back("moe.drop=position");
    expect_same_bits(run(config_of(keys), 3), plain);
  }
}

TEST(ExpertCapacity, BothOrdersDropAndDropOtherRows) {
  const double all = results_of(config_of({})).loss;
  const double by_weight = results_of(config_of({"moe.expert_capacity=0.5"})).loss;
  const double by_position =
      results_of(config_of({"moe.expert_capacity=0.5", "moe.drop=position"})).loss;
  EXPECT_NE(all, by_weight);
  EXPECT_NE(all, by_position);
  EXPECT_NE(by_weight, by_position);
}

// An evaluation has the microbatches of training, so the same rows are dropped.
TEST(ExpertCapacity, HoldsInEvaluations) {
  const Results results = results_of(config_of({"moe.expert_capacity=0.5"}));
  EXPECT_EQ(results.evaluation, results.loss);
  EXPECT_NE(results.evaluation, results_of(config_of({})).evaluation);
}

}  // namespace
}  // namespace braid
