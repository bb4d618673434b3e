#include "model/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace braid {
namespace {

ModelSpec small(const ModelStyle& style) {
  return {.style = style,
          .layers = 2,
          .width = 24,
          .heads = 3,
          .kv_heads = 3,
          .head_size = 8,
          .ffn = 40,
          .vocabulary = 130,
          .max_positions = 16,
          .qkv_bias = style == kGpt2Style};
}

const Parameter& find(const std::vector<Parameter>& list, const std::string& name) {
  return *std::find_if(list.begin(), list.end(),
                       [&](const Parameter& parameter) { return parameter.name == name; });
}

TEST(Parameters, NamesAreUniqueAndUnitsAreContiguous) {
  for (const ModelStyle& style : {kLlamaStyle, kGpt2Style}) {
    std::set<std::string> names;
    std::vector<std::string> units;
    for (const Parameter& parameter : model_parameters(small(style))) {
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
      if (units.empty() || units.back() != parameter.unit) {
        units.push_back(parameter.unit);
      }
    }
    EXPECT_EQ(units, (std::vector<std::string>{"embedding", "layers.0", "layers.1", "head"}));
  }
}

TEST(Parameters, TiedModelHasNoOutputMatrix) {
  ModelSpec spec = small(kLlamaStyle);
  const size_t untied = model_parameters(spec).size();
  spec.tied_embeddings = true;
  EXPECT_EQ(model_parameters(spec).size(), untied - 1);
}

TEST(Parameters, OnlyMatricesAndEmbeddingsDecay) {
  for (const Parameter& parameter : model_parameters(small(kGpt2Style))) {
    EXPECT_EQ(parameter.weight_decay, parameter.shape.rank() == 2) << parameter.name;
  }
}

ModelSpec with_experts() {
  ModelSpec spec = small(kLlamaStyle);
  spec.layers = LayerPattern::parse("attention+mlp attention+moe*2");
  spec.experts = 6;
  spec.experts_per_token = 2;
  spec.expert_ffn = 16;
  return spec;
}

// The bias of logits is trained, unlike that of the choice; both may be there.
TEST(Parameters, RoutersMayHaveTwoKindsOfBiases) {
  ModelSpec spec = with_experts();
  const int64_t plain = num_parameters(spec);
  const int64_t in_matrices = num_matrix_parameters(spec);
  spec.router.logit_bias = true;
  EXPECT_EQ(num_parameters(spec), plain + 2 * 6);
  EXPECT_EQ(num_trained_parameters(spec), plain + 2 * 6);
  EXPECT_EQ(num_matrix_parameters(spec), in_matrices);
  spec.router.bias = true;
  const std::vector<Parameter> list = model_parameters(spec);
  const Parameter& logits = find(list, "layers.1.moe.router.logit_bias");
  const Parameter& choice = find(list, "layers.1.moe.router.bias");
  const Parameter& weight = find(list, "layers.1.moe.router.weight");
  EXPECT_EQ(logits.shape, Shape({6}));
  EXPECT_EQ(logits.init, ParameterInit::kZeros);
  EXPECT_FALSE(logits.weight_decay);
  EXPECT_FALSE(logits.balances);
  EXPECT_TRUE(choice.balances);
  EXPECT_EQ(logits.split, weight.split);
  EXPECT_EQ(logits.domain, weight.domain);
  EXPECT_EQ(logits.unit, weight.unit);
}

TEST(Parameters, InitialValuesHaveTheStatedMoments) {
  const std::vector<Parameter> list = model_parameters(small(kLlamaStyle));
  const Parameter& proj = find(list, "layers.0.attention.proj.weight");
  std::vector<float> values(static_cast<size_t>(proj.shape.num_elems()));
  initial_values(proj, 130, 7, 0, values);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto n = static_cast<double>(values.size());
  const double expected_std = 0.02 / 2.0;  // residual projections: / sqrt(2 * 2 layers)
  EXPECT_NEAR(std::sqrt(squares / n), expected_std,
              5 * expected_std / std::sqrt(2 * n));  // 5 standard errors
  EXPECT_NEAR(sum / n, 0.0, 5 * expected_std / std::sqrt(n));
}

TEST(Parameters, AnyPieceHasTheValuesOfTheWhole) {
  const std::vector<Parameter> list = model_parameters(small(kLlamaStyle));
  const Parameter& table = find(list, "embedding.tokens");  // its end is past the vocabulary
  std::vector<float> whole(static_cast<size_t>(table.shape.num_elems()));
  initial_values(table, 130, 3, 0, whole);
  for (const auto& [begin, size] :
       {std::pair(0, 0), std::pair(37, 101), std::pair(36, 101), std::pair(37, 1), std::pair(38, 1),
        std::pair(130 * 24 - 3, 7), std::pair(130 * 24 + 1, 5)}) {
    std::vector<float> piece(static_cast<size_t>(size), -1.0f);
    initial_values(table, 130, 3, begin, piece);
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + begin)) << begin;
  }
}

// Bits of the first version: a run of the same seed starts where published runs started.
TEST(Parameters, ValuesStayThoseOfEarlierVersions) {
  const std::vector<Parameter> list = model_parameters(small(kLlamaStyle));
  std::vector<float> values(6);
  initial_values(find(list, "layers.1.attention.qkv.weight"), 130, 1234, 0, values);
  EXPECT_EQ(values, (std::vector<float>{0x1.8b8896p-7f, 0x1.b33212p-6f, -0x1.21af0ap-6f,
                                        -0x1.8bbf7ep-6f, 0x1.4aa964p-6f, 0x1.e4ee9cp-7f}));
}

ModelSpec with_states() {
  return {.style = kMamba2Style,
          .layers = LayerPattern::parse("M"),
          .width = 8,
          .mamba_num_heads = 2000,
          .mamba_head_dim = 1,
          .ssm_state_size = 3,
          .mamba_n_groups = 2,
          .conv_kernel = 4,
          .mamba_chunk_size = 8,
          .vocabulary = 130};
}

std::vector<float> values_of(const Parameter& parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.shape.num_elems()));
  initial_values(parameter, 130, 5, 0, values);
  return values;
}

// Of 2,000 uniform values on (0, 1): the mean is off by 0.0065 (one standard error), and one of
// each 20 equal parts of the interval has 100, with a standard deviation of 10.
TEST(Parameters, OfStatesAreSpreadAsPublished) {
  const std::vector<Parameter> list = model_parameters(with_states());
  const auto expect_uniform = [&](const char* name, const auto& to_uniform) {
    std::vector<int> parts(20);
    for (const float value : values_of(find(list, name))) {
      const double u = to_uniform(static_cast<double>(value));
      ASSERT_TRUE(u > -1e-6 && u < 1 + 1e-6) << name << " " << value;
      ++parts[std::min<size_t>(19, static_cast<size_t>(std::max(0.0, u) * 20))];
    }
    EXPECT_GT(*std::min_element(parts.begin(), parts.end()), 50) << name;
  };
  expect_uniform("layers.0.mamba.a_log", [](double x) { return (std::exp(x) - 1) / 15; });
  expect_uniform("layers.0.mamba.dt_bias", [](double x) {
    return std::log(std::log1p(std::exp(x)) / 0.001) / std::log(100.0);
  });
  expect_uniform("layers.0.mamba.conv.bias", [](double x) { return x + 0.5; });
  expect_uniform("layers.0.mamba.conv.weight", [](double x) { return x + 0.5; });
  EXPECT_EQ(values_of(find(list, "layers.0.mamba.skip")), std::vector<float>(2000, 1.0f));
  const Parameter& a_log = find(list, "layers.0.mamba.a_log");
  std::vector<float> piece(100);
  initial_values(a_log, 130, 5, 77, piece);
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), values_of(a_log).begin() + 77));
  for (const Parameter& parameter : list) {
    EXPECT_EQ(parameter.weight_decay, parameter.shape.rank() == 2) << parameter.name;
  }
}

TEST(Parameters, SeedAndNameDecideTheValues) {
  const std::vector<Parameter> list = model_parameters(small(kLlamaStyle));
  std::vector<float> a(64), b(64), c(64);
  initial_values(find(list, "layers.0.mlp.fc1.weight"), 130, 1, 0, a);
  initial_values(find(list, "layers.1.mlp.fc1.weight"), 130, 1, 0, b);
  initial_values(find(list, "layers.0.mlp.fc1.weight"), 130, 2, 0, c);
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
}

TEST(Parameters, RowsPastTheVocabularyAreZero) {
  const std::vector<Parameter> list = model_parameters(small(kLlamaStyle));
  const Parameter& table = find(list, "embedding.tokens");
  ASSERT_EQ(table.shape, (Shape{256, 24}));
  std::vector<float> values(256 * 24, 1.0f);
  initial_values(table, 130, 1, 0, values);
  EXPECT_TRUE(std::all_of(values.begin() + 130 * 24, values.end(),
                          [](float value) { return value == 0.0f; }));
  EXPECT_TRUE(std::none_of(values.begin(), values.begin() + 130 * 24,
                           [](float value) { return value == 0.0f; }));
}

}  // namespace
}  // namespace braid
