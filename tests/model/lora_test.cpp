#include "model/lora.h"

#include <gmock/gmock.h>

#include <map>

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/forward.h"
#include "model/parameters.h"
#include "ops/autodiff.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec adapted_llama(std::vector<std::string> targets = {"*"}) {
  return {.layers = 2,
          .width = 20,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 6,
          .ffn = 24,
          .vocabulary = 300,
          .lora = {.rank = 3, .alpha = 6, .targets = std::move(targets)}};
}

const Parameter& parameter_of(const std::vector<Parameter>& list, std::string_view name) {
  const auto found = std::ranges::find(list, name, &Parameter::name);
  check(found != list.end(), "no parameter {}", name);
  return *found;
}

TEST(Lora, TrainsNothingButAdapters) {
  const std::vector<Parameter> all = model_parameters(adapted_llama());
  std::vector<std::string> trained;
  for (const Parameter& parameter : all) {
    if (!parameter.frozen && parameter.layer == 1) {
      trained.push_back(parameter.name.substr(std::string("layers.1.").size()));
      EXPECT_EQ(parameter.unit, "layers.1.lora");
    }
    EXPECT_EQ(parameter.frozen, parameter.name.find(".lora_") == std::string::npos);
  }
  EXPECT_THAT(trained, ElementsAre("attention.qkv.lora_a.weight", "attention.qkv.lora_b.q.weight",
                                   "attention.qkv.lora_b.k.weight", "attention.qkv.lora_b.v.weight",
                                   "attention.proj.lora_a.weight",
                                   "attention.proj.lora_b.proj.weight", "mlp.fc1.lora_a.weight",
                                   "mlp.fc1.lora_b.gate.weight", "mlp.fc1.lora_b.up.weight",
                                   "mlp.fc2.lora_a.weight", "mlp.fc2.lora_b.fc2.weight"));
  EXPECT_EQ(parameter_of(all, "layers.1.attention.qkv.lora_a.weight").shape, Shape({9, 20}));
  EXPECT_EQ(parameter_of(all, "layers.1.attention.qkv.lora_b.v.weight").shape, Shape({12, 3}));
}

TEST(Lora, FindsItsMatricesInAWeight) {
  const ModelSpec spec = adapted_llama({"k", "v", "up"});
  const std::vector<Parameter> all = model_parameters(spec);
  const auto qkv = adapted_matrices(spec.lora, parameter_of(all, "layers.0.attention.qkv.weight"));
  ASSERT_EQ(qkv.size(), 2u);
  EXPECT_EQ(qkv[1].first_row, 36);
  EXPECT_EQ(qkv[1].a_row, 3);
  const auto fc1 = adapted_matrices(spec.lora, parameter_of(all, "layers.0.mlp.fc1.weight"));
  ASSERT_EQ(fc1.size(), 1u);
  EXPECT_EQ(fc1[0].first_row, 1);
  EXPECT_EQ(fc1[0].row_stride, 2);
  EXPECT_EQ(fc1[0].num_rows, 24);
}

// Two layers of four adapted products; no gradient leaves the first layer's adapters downwards.
TEST(Lora, HasNoGradientTasksOfFrozenWeights) {
  StageGraph graph = build_forward(adapted_llama(), {.microbatch = 2, .sequence = 8});
  differentiate(graph);
  std::map<std::string, int> counts;
  for (const Node& node : graph.backward) {
    ++counts[node.spec.op];
    for (const ValueId id : node.operands) {
      const Value& value = graph.value(id);
      EXPECT_TRUE(value.kind != ValueKind::kMainGrad ||
                  value.name.find(".lora_") != std::string::npos)
          << value.name;
    }
  }
  EXPECT_EQ(counts["linear_wgrad"], 2 * (4 + 7));
  // Head; in the second layer 4 products and 11 factors; in the first all but two that read the
  // embedding.
  EXPECT_EQ(counts["linear_dgrad"], 1 + 2 * (4 + 11) - 2);
  EXPECT_EQ(counts["embedding_wgrad"], 0);
  EXPECT_EQ(counts["rmsnorm_backward"], 4);
}

TEST(Lora, HasALengthForEachRowOfAnAdaptedWeight) {
  ModelSpec spec = adapted_llama({"k", "f*"});
  spec.lora.magnitudes = true;
  const std::vector<Parameter> all = model_parameters(spec);
  std::vector<std::string> lengths;
  for (const Parameter& parameter : all) {
    if (parameter.layer == 1 && parameter.name.find("magnitude") != std::string::npos) {
      lengths.push_back(parameter.name);
      EXPECT_EQ(parameter.unit, "layers.1.lora");
      EXPECT_FALSE(parameter.frozen || parameter.weight_decay);
    }
  }
  EXPECT_THAT(lengths, ElementsAre("layers.1.attention.qkv.lora_magnitude.weight",
                                   "layers.1.mlp.fc2.lora_magnitude.weight"));
  EXPECT_EQ(parameter_of(all, lengths[0]).shape, Shape({48}));
  const auto qkv = adapted_matrices(spec.lora, parameter_of(all, "layers.1.attention.qkv.weight"));
  EXPECT_EQ(qkv.at(0).magnitude, lengths[0]);
}

// A rank with columns of the weight adds up squares of rows with the others; a bias is not scaled.
TEST(Lora, ScalesProductsWithoutTheirBias) {
  ModelSpec spec = adapted_llama({"*"});
  spec.lora.magnitudes = true;
  spec.qkv_bias = true;
  StageGraph graph =
      build_forward(spec, {.microbatch = 2, .sequence = 8, .tensor = {.size = 2, .index = 1}});
  std::map<std::string, int> counts;
  for (const Node& node : graph.forward) {
    ++counts[node.spec.op];
    if (node.spec.op == "apply_magnitudes") {
      EXPECT_EQ(std::get<bool>(*node.spec.find_attribute("has_bias")),
                node.site.find("qkv") != std::string::npos);
    } else if (node.spec.op == "linear") {
      EXPECT_FALSE(std::get<bool>(*node.spec.find_attribute("has_bias"))) << node.site;
    }
  }
  EXPECT_EQ(counts["adapted_squares"], 2 * 4);
  EXPECT_EQ(counts["apply_magnitudes"], 2 * 4);
  // Of the squares and of the results of proj and fc2, and of the embedding.
  EXPECT_EQ(counts["all_reduce"], 2 * (2 + 2) + 1);
}

TEST(Lora, RefusesWhatTheModelDoesNotHave) {
  ModelSpec spec = adapted_llama({"q", "fc1"});
  EXPECT_THAT(message_of<ConfigError>([&] { check_model(spec); }),
              HasSubstr("lora.targets: no matrix of the model is called \"fc1\"; they are q, k, v, "
                        "proj, gate, up, fc2"));
  spec = adapted_llama();
  spec.layers = LayerPattern::parse("attention+moe");
  spec.experts = 4;
  spec.experts_per_token = 2;
  spec.expert_ffn = 8;
  EXPECT_THAT(message_of<ConfigError>([&] { check_model(spec); }),
              HasSubstr("lora.rank = 3: attention and mlp have adapters, but model.pattern has "
                        "\"moe\"; set lora.rank = 0"));
  spec = adapted_llama();
  spec.mtp_depth = 1;
  EXPECT_THAT(message_of<ConfigError>([&] { check_model(spec); }),
              HasSubstr("lora.rank = 3: layers of multi-token prediction have no adapters; set "
                        "model.mtp_depth = 0 instead of 1"));
}

}  // namespace
}  // namespace braid
