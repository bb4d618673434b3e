// Counting what FP8 copies lose (train.fp8_watch) changes no bit of the training, and the counts
// are those of the copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/load.h"
#include "ops/quantize.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

RunConfig config_of(const std::string& recipe, std::vector<std::string> more = {}) {
  std::vector<std::string> overrides{
      "model.layers=2",          "model.width=128",      "model.heads=4",
      "model.kv_heads=2",        "model.ffn=256",        "train.sequence=64",
      "train.microbatch=2",      "train.global_batch=4", "train.dtype=bfloat16",
      "logging.run_folder=none", "train.fp8=" + recipe};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return parse_config("", "fp8_watch", overrides);
}

RunConfig watched(RunConfig config) {
  config.train.fp8_watch = 1;
  return config;
}

/// What was lost at one place.
struct Fp8Losses {
  TallyPlace place;
  uint32_t largest = 0;  // bits
  int64_t flushed = 0;
  int64_t saturated = 0;
  int64_t elems = 0;
};

std::vector<Fp8Losses> losses_in(const StepTallies& tallies) {
  std::vector<Fp8Losses> losses;
  for (const Tally& tally : tallies.tallies) {
    EXPECT_EQ(tally.place.kind, TallyKind::kFp8Losses);
    EXPECT_EQ(tally.values.size(), static_cast<size_t>(Fp8Tally::kSize));
    losses.push_back({.place = tally.place,
                      .largest = static_cast<uint32_t>(tally.values[Fp8Tally::kLargest]),
                      .flushed = tally.values[Fp8Tally::kFlushed],
                      .saturated = tally.values[Fp8Tally::kSaturated],
                      .elems = tally.values[Fp8Tally::kElems]});
  }
  return losses;
}

/// Losses of each of the steps.
std::vector<std::vector<Fp8Losses>> losses_of(RunConfig config, int64_t steps) {
  config = resolved(config);
  Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  std::vector<std::vector<Fp8Losses>> losses;
  for (int64_t step = 1; step <= steps; ++step) {
    engine.train_step(*loader.next(), config.optimizer, 1e-3, step);
    losses.push_back(losses_in(engine.tallies()));
  }
  return losses;
}

TEST(Fp8Watch, ChangesNoBitOfTheTraining) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> runs = {
      {"tensor", {}},
      {"block", {"memory.recompute=full"}},
      {"mxfp8", {"parallel.ranks=2", "parallel.tensor=2"}},
      {"block", {"parallel.ranks=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"}},
      {"block", {"parallel.ranks=2", "parallel.shard=parameters"}},
      {"tensor", {"parallel.ranks=2", "parallel.shard=optimizer"}}};
  for (const auto& [recipe, layout] : thinned(runs, 2)) {
    RunConfig config = config_of(recipe, layout);
    const Outcome plain = run(config, 1);
    for (const char* const mode : {"off", "auto"}) {
      config.overlap.mode = mode;
      expect_same_bits(plain, run(watched(config), 1));
    }
  }
}

TEST(Fp8Watch, EachFactorOfEachProductHasItsNumbers) {
  const auto steps = losses_of(watched(config_of("block")), 2);
  constexpr int64_t kTokens = 4 * 64;
  std::vector<std::string> places;
  for (const Fp8Losses& one : steps[1]) {
    places.push_back(one.place.site + " " + one.place.factor);
    EXPECT_GT(std::bit_cast<float>(one.largest), 0.0F) << places.back();
    EXPECT_TRUE(std::isfinite(std::bit_cast<float>(one.largest))) << places.back();
    EXPECT_EQ(one.saturated, 0) << places.back();
    EXPECT_LT(one.flushed, one.elems / 2) << places.back();
  }
  EXPECT_EQ(places.size(), 2u * 4 * 3);
  EXPECT_THAT(places, testing::IsSupersetOf({"layers.0.attention.qkv x", "layers.0.attention.qkv w",
                                             "layers.1.attention.proj dy"}));
  const auto at = [&](const std::string& site, const std::string& factor) {
    return *std::ranges::find_if(steps[1], [&](const Fp8Losses& one) {
      return one.place.site == site && one.place.factor == factor;
    });
  };
  EXPECT_EQ(at("layers.0.attention.qkv", "x").elems, 2 * kTokens * 128);  // rows and columns
  // Its columns are made in the backward.
  EXPECT_EQ(at("layers.0.attention.proj", "x").elems, 2 * kTokens * 128);
  EXPECT_EQ(at("layers.0.attention.proj", "dy").elems, 2 * kTokens * 128);
  EXPECT_EQ(at("layers.0.attention.proj", "w").elems, 2 * 128 * 128);  // once for all microbatches
  EXPECT_NE(at("layers.0.attention.qkv", "w").largest,
            losses_of(watched(config_of("block")), 1)[0][0].largest);
}

TEST(Fp8Watch, AStepBeginsWithoutTheNumbersOfTheLast) {
  const auto steps = losses_of(watched(config_of("mxfp8")), 2);
  for (size_t i = 0; i < steps[0].size(); ++i) {
    EXPECT_EQ(steps[0][i].elems, steps[1][i].elems);
  }
}

using Key = std::pair<std::string, std::string>;

std::map<Key, Fp8Losses> by_place(const std::vector<Fp8Losses>& losses) {
  std::map<Key, Fp8Losses> sums;
  for (const Fp8Losses& one : losses) {
    Fp8Losses& sum = sums[{one.place.site, one.place.factor}];
    sum.largest = std::max(sum.largest, one.largest);
    sum.flushed += one.flushed;
    sum.elems += one.elems;
  }
  return sums;
}

// Repeated tasks count nothing, and passes move no task into another step.
TEST(Fp8Watch, PassesDoNotChangeTheNumbers) {
  const std::vector<std::string> layout{"parallel.ranks=2", "parallel.pipeline=2"};
  const auto expected = by_place(losses_of(watched(config_of("block", layout)), 1)[0]);
  EXPECT_EQ(expected.size(), 2u * 4 * 3);  // of both stages
  for (const char* const key :
       {"memory.recompute=full", "memory.recompute=norms", "overlap.mode=off"}) {
    std::vector<std::string> keys = layout;
    keys.emplace_back(key);
    const auto found = by_place(losses_of(watched(config_of("block", keys)), 1)[0]);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [place, losses] : expected) {
      EXPECT_EQ(found.at(place).largest, losses.largest) << key << place.first;
      EXPECT_EQ(found.at(place).flushed, losses.flushed) << key << place.first;
      EXPECT_EQ(found.at(place).elems, losses.elems) << key << place.first;
    }
  }
}

// Ranks that gather FP8 copies of their shards of weights count each element once, by rows.
TEST(Fp8Watch, ShardsOfWeightsAddUpToTheWeight) {
  const auto whole = by_place(losses_of(watched(config_of("block")), 1)[0]);
  const auto parts = by_place(losses_of(
      watched(config_of("block", {"parallel.ranks=2", "parallel.shard=parameters"})), 1)[0]);
  ASSERT_EQ(parts.size(), whole.size());
  for (const auto& [place, losses] : whole) {
    if (place.second == "w") {
      EXPECT_EQ(parts.at(place).largest, losses.largest) << place.first;
      EXPECT_EQ(2 * parts.at(place).elems, losses.elems) << place.first;
      EXPECT_EQ(2 * parts.at(place).flushed, losses.flushed) << place.first;
    }
  }
}

TEST(Fp8Watch, ProgramsWithoutItDoNotMentionIt) {
  RunConfig config = resolved(config_of("block"));
  const RunPlan plan = plan_run(resolve_run(config, 50));
  for (const Program& program : plan.ranks.front().programs) {
    EXPECT_TRUE(tally_ranges(program).empty());
    EXPECT_TRUE(std::ranges::none_of(program.specs.all(), [](const OpSpec& spec) {
      return spec.find_attribute("watch") != nullptr;
    }));
  }
  config.train.fp8_watch = 10;
  const RunPlan counting = plan_run(resolve_run(config, 50));
  EXPECT_EQ(tally_ranges(counting.ranks.front().programs[0]).size(), 2u * 4 * 3);
  EXPECT_TRUE(tally_ranges(counting.ranks.front().programs[1]).empty());  // an evaluation
  EXPECT_EQ(plan.ranks.front().programs[0].tasks.size() + 1,
            counting.ranks.front().programs[0].tasks.size());  // which zeroes the numbers
}

}  // namespace
}  // namespace braid
