#include "parallel/parameter_layout.h"
#include "model/families.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "base/errors.h"
#include "support/shard_elements.h"

namespace braid {
namespace {

Parameter parameter(const std::string& name, const std::string& unit, const Shape& shape,
                    bool decays) {
  return {.name = name, .shape = shape, .weight_decay = decays, .unit = unit};
}

TEST(ParameterLayout, DecayingOnesComeFirstAtAlignedOffsets) {
  const ParameterLayout layout = make_parameter_layout({
      parameter("a.norm", "a", {5}, false),
      parameter("a.w", "a", {3, 7}, true),
      parameter("a.v", "a", {64}, true),
      parameter("b.w", "b", {1}, true),
  });
  ASSERT_EQ(layout.units.size(), 2u);
  EXPECT_EQ(layout.slot("a.w").begin, 0);
  EXPECT_EQ(layout.slot("a.w").end, 21);
  EXPECT_EQ(layout.slot("a.v").begin, 64);
  EXPECT_EQ(layout.slot("a.norm").begin, 128);
  EXPECT_EQ(layout.slot("a.norm").end, 133);
  EXPECT_EQ(layout.units[0].decay_end, 128);
  EXPECT_EQ(layout.units[0].num_elems, 192);
  EXPECT_EQ(layout.units[1].num_elems, 64);
  EXPECT_EQ(layout.units[1].decay_end, 64);
}

// Their main grads count tokens: the norm of the gradient is without them.
TEST(ParameterLayout, BiasesOfRoutersComeLastAndAreNoGradients) {
  Parameter bias = parameter("a.bias", "a", {6}, false);
  bias.balances = true;
  const ParameterLayout layout = make_parameter_layout({parameter("a.w", "a", {3, 7}, true), bias,
                                                        parameter("a.norm", "a", {5}, false),
                                                        parameter("b.w", "b", {1}, true)});
  EXPECT_EQ(layout.slot("a.norm").begin, 64);
  EXPECT_EQ(layout.slot("a.bias").begin, 128);
  EXPECT_EQ(layout.units[0].decay_end, 64);
  EXPECT_EQ(layout.units[0].balance_begin, 128);
  EXPECT_EQ(layout.units[0].num_elems, 192);
  EXPECT_EQ(layout.units[1].balance_begin, layout.units[1].num_elems);
  EXPECT_TRUE(layout.shards[1].counted.empty());
  EXPECT_EQ(layout.shards[2].counted, (std::vector<IndexRange>{{0, 5}}));
}

TEST(ParameterLayout, RealModelsHaveNoGaps) {
  const ParameterLayout layout =
      make_parameter_layout(model_parameters(find_preset("llama-8b").spec));
  int64_t total = 0;
  for (const ParameterUnit& unit : layout.units) {
    total += unit.num_elems;
  }
  EXPECT_EQ(total, num_parameters(find_preset("llama-8b").spec));
}

// Any part of a unit, whole rows or not: every element of it once, in order, where the shard of its
// parameter has it.
TEST(ParameterLayout, BlocksOfARangeAreItsElements) {
  const ModelSpec spec{.layers = 1,
                       .width = 10,
                       .heads = 12,
                       .kv_heads = 2,
                       .head_size = 2,
                       .ffn = 24,
                       .vocabulary = 50};
  const Mesh mesh({.tensor = 4, .kv_replicas = 2});
  std::mt19937 random(7);
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    const ParameterLayout layout = make_rank_layout(spec, mesh, rank, {});
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      std::map<int64_t, std::pair<size_t, int64_t>> expected;  // by element of the unit
      for (const size_t index : layout.units[unit].slots) {
        const ParameterSlot& slot = layout.slots[index];
        for_each_shard_element(layout.parameters[slot.parameter].shape, layout.shards[index],
                               [&](size_t full, size_t local) {
                                 expected[slot.begin + static_cast<int64_t>(local)] = {
                                     slot.parameter, static_cast<int64_t>(full)};
                               });
      }
      for (int i = 0; i < 20; ++i) {
        const auto size = static_cast<uint64_t>(layout.units[unit].num_elems);
        UnitRange range{static_cast<int64_t>(random() % size),
                        static_cast<int64_t>(random() % size)};
        range.end = std::max(range.begin, range.end);
        std::map<int64_t, std::pair<size_t, int64_t>> found;
        for_each_block(layout, unit, range, [&](const ParameterBlock& block) {
          const Shape& shape = layout.parameters[block.parameter].shape;
          for (int64_t at = 0; at < block.num_elems(); ++at) {
            const int64_t full = block.full_begin +
                                 at / block.run_elems * (shape.num_elems() / shape[0]) +
                                 at % block.run_elems;
            EXPECT_TRUE(
                found.emplace(block.unit_begin + at, std::pair(block.parameter, full)).second);
          }
        });
        EXPECT_EQ(found, (std::map<int64_t, std::pair<size_t, int64_t>>(
                             expected.lower_bound(range.begin), expected.lower_bound(range.end))));
      }
    }
  }
}

TEST(ParameterLayout, TwoParametersOfOneNameAreABug) {
  EXPECT_THROW(
      make_parameter_layout({parameter("a", "u", {1}, true), parameter("a", "u", {1}, true)}),
      InternalError);
}

}  // namespace
}  // namespace braid
