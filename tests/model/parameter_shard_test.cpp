#include "model/parameter_shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/errors.h"
#include "support/shard_elements.h"

namespace braid {
namespace {

ModelSpec llama(int64_t heads, int64_t kv_heads) {
  return {.layers = 1,
          .width = 10,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_size = 2,
          .ffn = 24,
          .vocabulary = 300,
          .qkv_bias = true};
}

ModelSpec gpt2() {
  return {.style = kGpt2Style,
          .layers = 1,
          .width = 24,
          .heads = 12,
          .kv_heads = 12,
          .head_size = 2,
          .ffn = 36,
          .vocabulary = 130,
          .max_positions = 7,
          .tied_embeddings = true,
          .qkv_bias = true};
}

Parameter find(const ModelSpec& spec, const std::string& name) {
  const std::vector<Parameter> list = model_parameters(spec);
  return *std::find_if(list.begin(), list.end(),
                       [&](const Parameter& parameter) { return parameter.name == name; });
}

ParameterShard shard_of(const ModelSpec& spec, const std::string& name, const TensorShard& tensor) {
  return shard_parameter(spec, find(spec, name), {.tensor = tensor});
}

ModelSpec hybrid() {
  return {.style = kNemotronHStyle,
          .layers = LayerPattern::parse("M*-"),
          .width = 10,
          .heads = 12,
          .kv_heads = 4,
          .head_size = 2,
          .mamba_num_heads = 8,
          .mamba_head_dim = 3,
          .ssm_state_size = 5,
          .mamba_n_groups = 4,
          .conv_kernel = 2,
          .mamba_chunk_size = 4,
          .ffn = 24,
          .vocabulary = 300};
}

struct Case {
  ModelSpec spec;
  int64_t size;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const int64_t kv_heads : {1, 2, 4, 12}) {
    for (const int64_t size : {1, 2, 4, 12}) {
      list.push_back({llama(12, kv_heads), size});
    }
  }
  for (const int64_t size : {1, 2, 3, 4, 6, 12}) {
    list.push_back({gpt2(), size});
  }
  for (const int64_t size : {1, 2, 4}) {
    list.push_back({hybrid(), size});
  }
  return list;
}

TEST(ParameterShard, OfOneRankIsTheParameter) {
  for (const ModelSpec& spec : {llama(12, 4), gpt2()}) {
    for (const Parameter& parameter : model_parameters(spec)) {
      const int64_t elems = parameter.shape.num_elems();
      const ParameterShard shard =
          shard_parameter(spec, parameter, {.tensor = {.sequence_parallel = true}});
      EXPECT_EQ(shard.local_shape, parameter.shape) << parameter.name;
      EXPECT_TRUE(shard.partial_sums.empty()) << parameter.name;
      EXPECT_EQ(shard.counted, (std::vector<IndexRange>{{0, elems}})) << parameter.name;
      EXPECT_EQ(local_parameter(spec, parameter, {}).shape, parameter.shape);
      EXPECT_EQ(element_blocks(parameter.shape, shard),
                (std::vector<ElementBlock>{{0, 0, 1, elems}}))
          << parameter.name;
    }
  }
}

TEST(ParameterShard, SplitsColumnsOfWhatFollowsASplitActivation) {
  const ParameterShard shard =
      shard_of(llama(12, 4), "layers.0.attention.proj.weight", {.size = 4, .index = 2});
  EXPECT_EQ(shard.axis, 1);
  EXPECT_EQ(shard.ranges, (std::vector<IndexRange>{{12, 18}}));
  EXPECT_EQ(shard.local_shape, (Shape{10, 6}));
  EXPECT_EQ(shard.counted, (std::vector<IndexRange>{{0, 60}}));
  EXPECT_EQ(element_blocks({10, 24}, shard), (std::vector<ElementBlock>{{12, 0, 10, 6}}));
}

// Rows gate_0, up_0, gate_1, ...: whole pairs.
TEST(ParameterShard, SplitsGateAndUpTogether) {
  const ParameterShard shard =
      shard_of(llama(12, 4), "layers.0.mlp.fc1.weight", {.size = 2, .index = 1});
  EXPECT_EQ(shard.axis, 0);
  EXPECT_EQ(shard.ranges, (std::vector<IndexRange>{{24, 48}}));
  EXPECT_EQ(shard.local_shape, (Shape{24, 10}));
  EXPECT_EQ(element_blocks({48, 10}, shard), (std::vector<ElementBlock>{{240, 0, 1, 240}}));
}

TEST(ParameterShard, SplitsQueriesKeysAndValuesEach) {
  // 12 query heads of 2, then 4 key heads, then 4 value heads.
  const ParameterShard shard =
      shard_of(llama(12, 4), "layers.0.attention.qkv.weight", {.size = 4, .index = 1});
  EXPECT_EQ(shard.ranges, (std::vector<IndexRange>{{6, 12}, {26, 28}, {34, 36}}));
  EXPECT_EQ(shard.local_shape, (Shape{10, 10}));
  EXPECT_TRUE(shard.partial_sums.empty());
  EXPECT_EQ(shard_of(llama(12, 4), "layers.0.attention.qkv.bias", {.size = 4, .index = 1}).ranges,
            shard.ranges);
}

TEST(ParameterShard, SplitsEachPartOfAStateSpace) {
  // Rows of z (8 heads of 3), x (the same), B and C (4 groups of 5 each), dt (8 heads).
  const TensorShard tensor{.size = 4, .index = 1};
  const ParameterShard shard = shard_of(hybrid(), "layers.0.mamba.in_proj.weight", tensor);
  EXPECT_EQ(shard.ranges,
            (std::vector<IndexRange>{{6, 12}, {30, 36}, {53, 58}, {73, 78}, {90, 92}}));
  EXPECT_EQ(shard.local_shape, (Shape{24, 10}));
  EXPECT_TRUE(shard.partial_sums.empty());
  EXPECT_EQ(shard_of(hybrid(), "layers.0.mamba.conv.weight", tensor).ranges,
            (std::vector<IndexRange>{{6, 12}, {29, 34}, {49, 54}}));
  EXPECT_EQ(shard_of(hybrid(), "layers.0.mamba.a_log", tensor).ranges,
            (std::vector<IndexRange>{{2, 4}}));
}

TEST(ParameterShard, SharedKeyHeadsHavePartialGradientsThatOneRankCounts) {
  for (const int64_t index : {2, 3}) {
    const ParameterShard shard =
        shard_of(llama(12, 2), "layers.0.attention.qkv.weight", {.size = 4, .index = index});
    EXPECT_EQ(shard.ranges,
              (std::vector<IndexRange>{{6 * index, 6 * index + 6}, {26, 28}, {30, 32}}));
    EXPECT_EQ(shard.partial_sums, (std::vector<PartialSum>{{{60, 100}, "tensor.kv"}}));
    EXPECT_EQ(shard.counted, (std::vector<IndexRange>{{0, index == 2 ? 100 : 60}}));
  }
}

TEST(ParameterShard, NormGradientsArePartialOnlyWhereRowsAreSplit) {
  for (const bool sequence_parallel : {false, true}) {
    for (const int64_t index : {0, 1}) {
      const TensorShard tensor{.size = 2, .index = index, .sequence_parallel = sequence_parallel};
      const ParameterShard shard = shard_of(gpt2(), "layers.0.mlp_norm.bias", tensor);
      EXPECT_EQ(shard.local_shape, (Shape{24}));
      EXPECT_EQ(shard.partial_sums, sequence_parallel
                                        ? (std::vector<PartialSum>{{{0, 24}, "tensor"}})
                                        : std::vector<PartialSum>{});
      EXPECT_EQ(shard.counted.size(), index == 0 ? 1u : 0u);
      // Behind a sum over ranks every rank has all rows again.
      EXPECT_TRUE(shard_of(gpt2(), "layers.0.mlp.fc2.bias", tensor).partial_sums.empty());
      EXPECT_TRUE(shard_of(gpt2(), "embedding.positions", tensor).partial_sums.empty());
    }
  }
}

TEST(ParameterShard, LastVocabularyShardsEndInPadding) {
  // 130 tokens: 256 rows in the full tensor, 384 over 3 ranks.
  const Parameter table = find(gpt2(), "embedding.tokens");
  ASSERT_EQ(table.shape, (Shape{256, 24}));
  const IndexRange expected[] = {{0, 128}, {128, 256}, {256, 256}};
  for (int64_t index = 0; index < 3; ++index) {
    const ParameterShard shard =
        shard_parameter(gpt2(), table, {.tensor = {.size = 3, .index = index}});
    EXPECT_EQ(shard.local_shape, (Shape{128, 24}));
    EXPECT_EQ(shard.ranges, (std::vector<IndexRange>{expected[index]}));
  }
  EXPECT_TRUE(element_blocks(table.shape,
                             shard_parameter(gpt2(), table, {.tensor = {.size = 3, .index = 2}}))
                  .empty());
}

/// 4 experts of 3 pairs of rows and 5 columns, and their way back.
ModelSpec with_experts() {
  return {.layers = LayerPattern::parse("attention+moe"),
          .width = 5,
          .heads = 1,
          .kv_heads = 1,
          .head_size = 2,
          .experts = 4,
          .experts_per_token = 2,
          .expert_ffn = 3,
          .vocabulary = 300};
}

TEST(ParameterShard, OfExpertsIsAPartOfEachOfARunOfThem) {
  const WeightShard place{.experts = {.size = 2, .index = 1, .tensor = 3, .tensor_index = 2}};
  const Parameter fc1 = find(with_experts(), "layers.0.moe.fc1.weight");
  ASSERT_EQ(fc1.shape, (Shape{4 * 6, 5}));
  const ParameterShard rows = shard_parameter(with_experts(), fc1, place);
  EXPECT_EQ(rows.local_shape, (Shape{2 * 2, 5}));
  EXPECT_EQ(rows.ranges, (std::vector<IndexRange>{{16, 18}, {22, 24}}));
  const Parameter fc2 = find(with_experts(), "layers.0.moe.fc2.weight");
  ASSERT_EQ(fc2.shape, (Shape{4 * 5, 3}));
  const ParameterShard columns = shard_parameter(with_experts(), fc2, place);
  EXPECT_EQ(columns.local_shape, (Shape{2 * 5, 1}));
  EXPECT_EQ(element_blocks(fc2.shape, columns),
            (std::vector<ElementBlock>{
                {.full_begin = 10 * 3 + 2, .local_begin = 0, .num_runs = 10, .run_elems = 1}}));
}

TEST(ParameterShard, RanksOfExpertsHoldEachElementOnce) {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t tensor : {1, 3}) {
      for (const char* const name : {"layers.0.moe.fc1.weight", "layers.0.moe.fc2.weight"}) {
        const Parameter parameter = find(with_experts(), name);
        std::vector<int> held(static_cast<size_t>(parameter.shape.num_elems()));
        for (int64_t i = 0; i < ranks * tensor; ++i) {
          const WeightShard place{.experts = {.size = ranks,
                                              .index = i / tensor,
                                              .tensor = tensor,
                                              .tensor_index = i % tensor}};
          const ParameterShard shard = shard_parameter(with_experts(), parameter, place);
          EXPECT_EQ(shard.counted, (std::vector<IndexRange>{{0, shard.local_shape.num_elems()}}));
          for_each_shard_element(parameter.shape, shard,
                                 [&](size_t full, size_t) { ++held.at(full); });
        }
        EXPECT_EQ(held, std::vector<int>(held.size(), 1)) << name << " " << ranks << " " << tensor;
      }
    }
  }
}

/// How often the ranks of a group hold and count each element of the full tensor.
struct Coverage {
  std::vector<int> held;
  std::vector<int> counted;
  std::vector<int> partial;  ///< holders for which the element is a partial sum
};

Coverage coverage_of(const Case& c, const Parameter& parameter, bool sequence_parallel) {
  const auto elems = static_cast<size_t>(parameter.shape.num_elems());
  Coverage coverage{std::vector<int>(elems), std::vector<int>(elems), std::vector<int>(elems)};
  for (int64_t index = 0; index < c.size; ++index) {
    const ParameterShard shard = shard_parameter(
        c.spec, parameter,
        {.tensor = {.size = c.size, .index = index, .sequence_parallel = sequence_parallel}});
    const auto is_in = [](const IndexRange& range, int64_t i) {
      return i >= range.begin && i < range.end;
    };
    std::set<int64_t> local_elements;
    for_each_shard_element(parameter.shape, shard, [&](size_t full, size_t in_shard) {
      const auto local = static_cast<int64_t>(in_shard);
      EXPECT_TRUE(local_elements.insert(local).second);
      EXPECT_LT(local, shard.local_shape.num_elems());
      ++coverage.held.at(full);
      for (const IndexRange& range : shard.counted) {
        coverage.counted[full] += is_in(range, local) ? 1 : 0;
      }
      for (const PartialSum& partial : shard.partial_sums) {
        coverage.partial[full] += is_in(partial.elements, local) ? 1 : 0;
      }
    });
  }
  return coverage;
}

// Whatever the split: every element is somewhere, counted once, and where several ranks hold it,
// their gradients are either all whole or all partial.
TEST(ParameterShard, GroupHoldsEverythingAndCountsItOnce) {
  for (const Case& c : cases()) {
    for (const Parameter& parameter : model_parameters(c.spec)) {
      for (const bool sequence_parallel : {false, true}) {
        const std::string what =
            fmt::format("{} over {}, {} kv heads", parameter.name, c.size, c.spec.kv_heads);
        const Coverage coverage = coverage_of(c, parameter, sequence_parallel);
        for (size_t i = 0; i < coverage.held.size(); ++i) {
          ASSERT_GE(coverage.held[i], 1) << what << " element " << i;
          ASSERT_EQ(coverage.counted[i], 1) << what << " element " << i;
          ASSERT_TRUE(coverage.partial[i] == 0 || coverage.partial[i] == coverage.held[i]) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace braid
