#include "state/replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_plan.h"
#include "support/bit_flips.h"

namespace braid {
namespace {

/// Rank, buffer and element of it.
using Place = std::tuple<size_t, std::string, int64_t>;

struct Replicated {
  explicit Replicated(const Layout& layout)
      : plan(plan_run(resolve_run(config_of(layout), 0))),
        map(make_state_map(plan, StateCopies::kUpToDate)),
        sets(replica_sets(map, plan.layout)) {}

  /// The copies of each element of a tensor, in its order.
  std::vector<std::vector<Place>> elements(const ReplicaSet& set,
                                           const ReplicatedTensor& tensor) const {
    std::vector<std::vector<Place>> elements;
    for (const size_t rank : set.ranks) {
      size_t at = 0;
      for (const BufferElems& part : ReplicaPlaces(map, plan.layout, rank).of(tensor)) {
        elements.resize(std::max(elements.size(), at + static_cast<size_t>(part.num_elems)));
        for (int64_t i = 0; i < part.num_elems; ++i) {
          elements[at++].emplace_back(rank, std::string(part.buffer), part.begin + i);
        }
      }
    }
    return elements;
  }

  /// Ranks by tensor.
  std::multimap<std::string, std::vector<size_t>> ranks_by_tensor() const {
    std::multimap<std::string, std::vector<size_t>> ranks;
    for (const ReplicaSet& set : sets) {
      for (const ReplicatedTensor& tensor : set.tensors) {
        ranks.emplace(describe_tensor(tensor, plan.layout), set.ranks);
      }
    }
    return ranks;
  }

  RunPlan plan;
  StateMap map;
  std::vector<ReplicaSet> sets;
};

class Replicas : public testing::TestWithParam<Layout> {};

// Element by element: a set has exactly the copies that its ranks have, in one order.
TEST_P(Replicas, AreAllCopiesOfAllElements) {
  const Replicated replicated(GetParam());
  std::vector<std::vector<Place>> found;
  for (const ReplicaSet& set : replicated.sets) {
    EXPECT_GT(set.ranks.size(), 1u);
    for (const ReplicatedTensor& tensor : set.tensors) {
      const auto elements = replicated.elements(set, tensor);
      found.insert(found.end(), elements.begin(), elements.end());
    }
  }
  std::vector<std::vector<Place>> expected;
  for (const CopiedElement& element : copied_elements(replicated.plan, replicated.map)) {
    std::vector<Place>& places = expected.emplace_back();
    for (const StateRun& copy : element.copies) {
      places.emplace_back(copy.rank, replicated.map.buffers()[copy.buffer].name, copy.buffer_begin);
    }
    std::ranges::sort(places);
  }
  std::ranges::sort(found);
  std::ranges::sort(expected);
  EXPECT_EQ(found, expected);
}

const Layout kLayouts[] = {
    {kLlamaModel, "ranks=2"},
    {kThreeKvHeads, "ranks=6 tensor=6"},
    {kThreeKvHeads, "ranks=6 shard=parameters tensor=3"},
    {kLlamaModel, "ranks=4 shard=gradients shard_replicas=2 overlap.mode=off"},
    {kLlamaModel, "ranks=4 shard=parameters shard_replicas=2 shard_over_replicas=true"},
    {kGpt2Model, "ranks=4 pipeline=2 context=2"},
};
INSTANTIATE_TEST_SUITE_P(Layouts, Replicas, testing::ValuesIn(kLayouts));

TEST(ReplicaSets, TiedTablesAreOnTheFirstAndTheLastStage) {
  const auto ranks = Replicated({kGpt2Model, "ranks=4 pipeline=4"}).ranks_by_tensor();
  const std::multimap<std::string, std::vector<size_t>> expected = {
      {"embedding.tokens (weights)", {0, 3}},
      {"embedding.tokens (exp_avg)", {0, 3}},
      {"embedding.tokens (exp_avg_sq)", {0, 3}},
  };
  EXPECT_EQ(ranks, expected);
}

// Between steps, the first unit's weights are gathered already; of all else a rank has its part.
TEST(ReplicaSets, ReplicasThatUpdatePartsHoldTheirShardOfTheFirstUnitTwice) {
  std::multimap<std::string, std::vector<size_t>> others =
      Replicated(
          {kLlamaModel, "ranks=4 shard=parameters shard_replicas=2 shard_over_replicas=true"})
          .ranks_by_tensor();
  EXPECT_EQ(others.count("embedding.tokens (weights)"), 2u);
  EXPECT_EQ(others.find("embedding.tokens (weights)")->second, (std::vector<size_t>{0, 2}));
  others.erase("embedding.tokens (weights)");
  EXPECT_EQ(others.size(), 0u);
}

TEST(ReplicaSets, TensorRanksShareNormsAndNoProducts) {
  const auto ranks = Replicated({kLlamaModel, "ranks=2 tensor=2"}).ranks_by_tensor();
  EXPECT_EQ(ranks.find("layers.0.attention_norm.weight (weights)")->second,
            (std::vector<size_t>{0, 1}));
  EXPECT_EQ(ranks.count("layers.0.attention.proj.weight (weights)"), 0u);
}

// Matrices of 16,384 rows whose columns are in eight parts, on 512 ranks: neither their rows nor
// the ranks are visited one by one.
TEST(ReplicaSets, TimeDoesNotGrowWithRows) {
  const RunConfig config =
      config_of({"model.family=llama model.layers=2 model.width=16384 model.heads=128 "
                 "model.kv_heads=8 model.ffn=16384 model.vocabulary=128",
                 "ranks=512 tensor=8 train.global_batch=128"});
  const RunPlan plan = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
  const StateMap map = make_state_map(plan, StateCopies::kUpToDate);
  const std::clock_t begin = std::clock();
  const std::vector<ReplicaSet> sets = replica_sets(map, plan.layout);
  const ReplicaPlaces places(map, plan.layout, 9);
  size_t num_parts = 0;
  for (const ReplicaSet& set : sets) {
    if (std::ranges::binary_search(set.ranks, 9u)) {
      for (const ReplicatedTensor& tensor : set.tensors) {
        num_parts += places.of(tensor).size();
      }
    }
  }
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 5.0);
  EXPECT_EQ(sets.size(), 8u + 1u);  // parts of products on 64 ranks each, and norms on all
  EXPECT_LT(num_parts, 3 * 3 * plan.layout.parameters.size());
}

}  // namespace
}  // namespace braid
