#include "parallel/balance_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "parallel/pipeline_times.h"

namespace braid {
namespace {

using Layers = std::vector<int64_t>;
using Kind = ScheduleKind;

/// A layer takes 100, 110, 90; the head so many times as much.
PartCosts costs_with_head(double layers) {
  const auto head = [&](int64_t cost) { return static_cast<int64_t>(layers * cost); };
  return {.kinds = {{.forward = 100, .dgrad = 110, .wgrad = 90, .activations = 1}},
          .kind_of_layer = {},
          .embedding = {},
          .head = {.forward = head(100), .dgrad = head(110), .wgrad = head(90)}};
}

/// Layers of three kinds by turns: some cost half as much as others, and keep a third of it.
PartCosts costs_of_kinds(int64_t layers) {
  PartCosts costs = costs_with_head(0.9);
  costs.kinds = {{.forward = 100, .dgrad = 110, .wgrad = 90, .activations = 12},
                 {.forward = 50, .dgrad = 50, .wgrad = 50, .activations = 4},
                 {.forward = 60, .dgrad = 90, .wgrad = 30, .activations = 8}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    costs.kind_of_layer.push_back(layer < layers / 2 ? layer % 2 : (layer % 4 == 0 ? 2 : 0));
  }
  return costs;
}

std::vector<PartCost> costs_of(const Layers& layers, const PartCosts& costs) {
  std::vector<PartCost> sums;
  size_t layer = 0;
  for (const int64_t count : layers) {
    PartCost& sum = sums.emplace_back();
    for (const size_t end = layer + static_cast<size_t>(count); layer < end; ++layer) {
      const PartCost& cost = costs.layer(layer);
      sum.forward += cost.forward;
      sum.dgrad += cost.dgrad;
      sum.wgrad += cost.wgrad;
      sum.activations += cost.activations;
    }
  }
  return sums;
}

std::vector<StageTimes> times_of(const Layers& layers, const PartCosts& costs) {
  std::vector<StageTimes> times;
  for (const PartCost& sum : costs_of(layers, costs)) {
    times.push_back({.forward_ns = sum.forward, .dgrad_ns = sum.dgrad, .wgrad_ns = sum.wgrad});
  }
  times.front().forward_ns += costs.embedding.forward;
  times.front().dgrad_ns += costs.embedding.dgrad;
  times.front().wgrad_ns += costs.embedding.wgrad;
  times.back().forward_ns += costs.head.forward;
  times.back().dgrad_ns += costs.head.dgrad;
  times.back().wgrad_ns += costs.head.wgrad;
  return times;
}

int64_t end_of(const PipelineClock& clock, const Layers& layers, const PartCosts& costs) {
  return std::ranges::max(clock.end_times(times_of(layers, costs), 0));
}

/// What the header says that layouts are compared by.
double score_of(const PipelineClock& clock, const Layers& layers, const PartCosts& costs,
                const Layers& even) {
  const auto end = [&](const Layers& it) { return static_cast<double>(end_of(clock, it, costs)); };
  const auto peak = [&](const Layers& it) {
    std::vector<int64_t> activations;
    for (const PartCost& sum : costs_of(it, costs)) {
      activations.push_back(sum.activations);
    }
    return static_cast<double>(std::ranges::max(clock.peak_activations(activations)));
  };
  return end(layers) / end(even) + peak(layers) / peak(even) / 20;
}

/// All ways to give `rest` layers to the stages from `stage` on.
void each_layout(Layers& layers, size_t stage, int64_t rest,
                 const std::function<void(const Layers&)>& visit) {
  if (stage + 1 == layers.size()) {
    layers[stage] = rest;
    visit(layers);
    return;
  }
  for (int64_t count = stage == 0 ? 0 : 1; count <= rest; ++count) {
    layers[stage] = count;
    each_layout(layers, stage + 1, rest - count, visit);
  }
}

std::string text_of(const Layers& layers) {
  std::string text;
  for (const int64_t count : layers) {
    text += std::to_string(count) + " ";
  }
  return text;
}

struct SmallCase {
  ScheduleOptions schedule;
  int64_t layers;
};

std::vector<SmallCase> small_cases() {
  return {
      {{.kind = Kind::kOneForwardOneBackward, .num_ranks = 4, .num_microbatches = 12}, 14},
      {{.kind = Kind::kGpipe, .num_ranks = 4, .num_microbatches = 8}, 13},
      {{.kind = Kind::kZbH1, .num_ranks = 4, .num_microbatches = 8}, 16},
      {{.kind = Kind::kZbV, .num_ranks = 3, .virtual_stages = 2, .num_microbatches = 9}, 12},
      {{.kind = Kind::kDualpipeV, .num_ranks = 3, .virtual_stages = 2, .num_microbatches = 9}, 12},
      {{.kind = Kind::kInterleaved, .num_ranks = 2, .virtual_stages = 3, .num_microbatches = 8},
       13},
      {{.kind = Kind::kInterleaved, .num_ranks = 3, .virtual_stages = 2, .num_microbatches = 9},
       12},
      {{.kind = Kind::kInterleaved,
        .num_ranks = 2,
        .virtual_stages = 3,
        .num_microbatches = 10,
        .group_size = 5},
       9}};
}

TEST(BalanceStages, NoLayoutIsMuchBetter) {
  for (const SmallCase& it : small_cases()) {
    for (const double head : {0.0, 0.6, 2.4, 5.0}) {
      const PartCosts costs = costs_with_head(head);
      const PipelineClock clock(balancing_schedule(it.schedule));
      const Layers found = balanced_layers(it.schedule, it.layers, costs);
      const Layers& even = found;  // any layout does to compare with
      Layers best = found;
      Layers any(found.size());
      each_layout(any, 0, it.layers, [&](const Layers& layers) {
        if (score_of(clock, layers, costs, even) < score_of(clock, best, costs, even)) {
          best = layers;
        }
      });
      EXPECT_LE(score_of(clock, found, costs, even), 1.01 * score_of(clock, best, costs, even))
          << schedule_name(it.schedule.kind) << " head " << head << ": " << text_of(found)
          << "but best " << text_of(best);
    }
  }
}

TEST(BalanceStages, NoLayoutOfLayersThatDifferIsMuchBetter) {
  for (const SmallCase& it : small_cases()) {
    const PartCosts costs = costs_of_kinds(it.layers);
    const PipelineClock clock(balancing_schedule(it.schedule));
    const Layers found = balanced_layers(it.schedule, it.layers, costs);
    Layers best = found;
    Layers any(found.size());
    each_layout(any, 0, it.layers, [&](const Layers& layers) {
      if (score_of(clock, layers, costs, found) < score_of(clock, best, costs, found)) {
        best = layers;
      }
    });
    EXPECT_LE(score_of(clock, found, costs, found), 1.02 * score_of(clock, best, costs, found))
        << schedule_name(it.schedule.kind) << ": " << text_of(found) << "but best "
        << text_of(best);
  }
}

// Twelve cheap layers, then six that cost twice as much.
TEST(BalanceStages, StagesGetEqualCostsRatherThanEqualNumbers) {
  PartCosts costs;
  costs.kinds = {{.forward = 50, .dgrad = 50, .wgrad = 50, .activations = 1},
                 {.forward = 100, .dgrad = 100, .wgrad = 100, .activations = 2}};
  costs.kind_of_layer.assign(12, 0);
  costs.kind_of_layer.resize(18, 1);
  const ScheduleOptions schedule{.num_ranks = 4, .num_microbatches = 16};
  EXPECT_EQ(balanced_layers(schedule, 18, costs), (Layers{6, 6, 3, 3}));
  EXPECT_EQ(balanced_layers(schedule, 18, costs, BalanceEffort::kRough), (Layers{6, 6, 3, 3}));
}

TEST(BalanceStages, ARoughSearchIsClose) {
  for (const SmallCase& it : small_cases()) {
    const PartCosts costs = costs_with_head(2.1);
    const PipelineClock clock(balancing_schedule(it.schedule));
    const Layers found = balanced_layers(it.schedule, it.layers, costs);
    const Layers rough = balanced_layers(it.schedule, it.layers, costs, BalanceEffort::kRough);
    EXPECT_LE(score_of(clock, rough, costs, found), 1.06 * score_of(clock, found, costs, found))
        << schedule_name(it.schedule.kind) << ": " << text_of(rough) << "not " << text_of(found);
  }
}

TEST(BalanceStages, HeadHeavierThanALayerTakesThePlaceOfLayers) {
  // 34 layers' worth over 4 ranks: 8.5 each.
  const Layers layers =
      balanced_layers({.num_ranks = 4, .num_microbatches = 16}, 32, costs_with_head(2.1));
  EXPECT_EQ(layers.back(), 6);
  EXPECT_EQ(*std::ranges::max_element(layers), 9);
}

TEST(BalanceStages, AnInterleavedLastStageMayHaveTheHeadAlone) {
  const ScheduleOptions schedule{
      .kind = Kind::kInterleaved, .num_ranks = 8, .virtual_stages = 4, .num_microbatches = 32};
  const PartCosts costs = costs_with_head(2.1);
  const Layers layers = balanced_layers(schedule, 32, costs);
  EXPECT_EQ(layers.back(), 0);
  const PipelineClock clock(schedule);
  const int64_t even = end_of(clock, Layers(32, 1), costs);
  EXPECT_LT(static_cast<double>(end_of(clock, layers, costs)), 0.86 * static_cast<double>(even));
}

TEST(BalanceStages, LayersAloneThatDivideAreEven) {
  for (const SmallCase& it : small_cases()) {
    if (it.schedule.kind == Kind::kZbV || it.schedule.kind == Kind::kInterleaved) {
      continue;  // their bubble is shorter where first or last stages are smaller than others
    }
    const int64_t stages = it.schedule.num_stages();
    EXPECT_EQ(balanced_layers(it.schedule, 3 * stages, costs_with_head(0)),
              Layers(static_cast<size_t>(stages), 3))
        << schedule_name(it.schedule.kind);
  }
}

TEST(BalanceStages, EarlyRanksWithMoreActivationsGetFewerLayers) {
  // 9 layers on 4 ranks take as long wherever the fifth one of 1f1b's is; rank 0 holds 4
  // microbatches, rank 3 one.
  const Layers layers =
      balanced_layers({.num_ranks = 4, .num_microbatches = 32}, 33, costs_with_head(0));
  EXPECT_EQ(*std::ranges::max_element(layers), 9);
  EXPECT_EQ(layers.front(), 8);
}

TEST(BalanceStages, StagesInTheMiddleHaveALayer) {
  for (const int64_t layers : {6, 7, 8, 9}) {
    const Layers found =
        balanced_layers({.num_ranks = 8, .num_microbatches = 16}, layers, costs_with_head(9));
    EXPECT_EQ(std::accumulate(found.begin(), found.end(), int64_t{0}), layers);
    EXPECT_GE(*std::min_element(found.begin() + 1, found.end() - 1), 1) << text_of(found);
  }
}

TEST(BalanceStages, OneRankHasAllHoweverManyStages) {
  EXPECT_EQ(balanced_layers({.num_microbatches = 4}, 7, costs_with_head(2)), Layers{7});
  const Layers layers =
      balanced_layers({.kind = Kind::kInterleaved, .virtual_stages = 3, .num_microbatches = 4}, 7,
                      costs_with_head(2));
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}), 7);
}

TEST(BalanceStages, AnEmbeddingThatCostsTakesThePlaceOfLayers) {
  PartCosts costs = costs_with_head(0);
  costs.embedding = {.forward = 200, .dgrad = 220, .wgrad = 180};
  EXPECT_EQ(balanced_layers({.num_ranks = 2, .num_microbatches = 8}, 8, costs), (Layers{3, 5}));
}

TEST(BalanceStages, MoreMicrobatchesAndPairsMakeNoDifference) {
  ScheduleOptions schedule{.kind = Kind::kInterleaved,
                           .num_ranks = 4,
                           .virtual_stages = 3,
                           .num_microbatches = 48,
                           .pairs = JobPairs::kForwardBackward};
  const PartCosts costs = costs_with_head(1.5);
  const Layers layers = balanced_layers(schedule, 29, costs);
  EXPECT_EQ(balancing_schedule(schedule).num_microbatches, 16);
  schedule.num_microbatches = 480;
  schedule.pairs = JobPairs::kNone;
  EXPECT_EQ(balanced_layers(schedule, 29, costs), layers);
  // What is left over of a group stays, and large groups become smaller ones, if they may.
  schedule.num_microbatches = 47;
  EXPECT_EQ(balancing_schedule(schedule).num_microbatches, 19);
  schedule.num_microbatches = schedule.group_size = 480;
  EXPECT_EQ(balancing_schedule(schedule).group_size, 16);
  check_schedule(balancing_schedule(schedule));
}

TEST(BalanceStages, HundredsOfStagesTakeAsManyJobsAsAreAllowed) {
  const ScheduleOptions schedule{
      .kind = Kind::kInterleaved, .num_ranks = 16, .virtual_stages = 7, .num_microbatches = 256};
  const PartCosts costs = costs_with_head(0.7);
  const Layers layers = balanced_layers(schedule, 126, costs);
  const PipelineClock clock(schedule);
  // 126.7 layers' worth on 16 ranks; 5% is the bubble and what does not divide.
  const double ideal = 126.7 * 300 / 16 * 256;
  EXPECT_LT(static_cast<double>(end_of(clock, layers, costs)), 1.06 * ideal) << text_of(layers);
}

}  // namespace
}  // namespace braid
