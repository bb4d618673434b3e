#include "ops/quantize_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/autodiff.h"
#include "ops/grouped_linear.h"
#include "ops/linear.h"
#include "ops/quantize.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// x [rows, in] -> linear -> linear, with the second product's result as the stage's output.
StageGraph two_products(int64_t rows, int64_t in, bool has_bias = false, bool backward = true) {
  StageGraph graph;
  GraphBuilder builder(graph);
  builder.set_scope(0, "layers.0");
  const ValueId x = builder.add_value({.name = "x", .dtype = DType::kBF16, .shape = {rows, in}});
  graph.stage_input = x;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    return builder.named_value(
        {.name = name, .dtype = DType::kBF16, .shape = shape, .kind = ValueKind::kParam});
  };
  std::optional<ValueId> bias;
  if (has_bias) {
    bias = weight("b", {256});
  }
  const ValueId h = linear(builder, x, weight("w1", {256, in}), bias, "first");
  graph.stage_output = linear(builder, h, weight("w2", {128, 256}), std::nullopt, "second");
  if (backward) {
    differentiate(graph);
  }
  return graph;
}

std::vector<std::string> ops_of(const std::vector<Node>& nodes) {
  std::vector<std::string> ops;
  for (const Node& node : nodes) {
    ops.push_back(node.spec.op);
  }
  return ops;
}

bool reads_value(const std::vector<Node>& nodes, const StageGraph& graph, const std::string& name) {
  return std::ranges::any_of(nodes, [&](const Node& node) {
    return std::ranges::any_of(node.operands,
                               [&](ValueId id) { return graph.value(id).name == name; });
  });
}

TEST(QuantizeProducts, AllThreeOfEach) {
  StageGraph graph = two_products(128, 128);
  const auto sites = quantize_products(graph, Fp8Recipe::blocks());
  EXPECT_THAT(ops_of(graph.forward),
              ElementsAre("quantize", "scaled_linear", "quantize", "scaled_linear"));
  EXPECT_THAT(ops_of(graph.weights), ElementsAre("quantize_weight", "quantize_weight"));
  EXPECT_THAT(ops_of(graph.backward),
              ElementsAre("quantize", "scaled_linear_dgrad", "scaled_linear_wgrad", "quantize",
                          "scaled_linear_dgrad", "scaled_linear_wgrad"));
  ASSERT_EQ(sites.size(), 2u);
  EXPECT_EQ(sites[0].site, "layers.0.first");
  EXPECT_EQ(sites[0].reason, "");
}

TEST(QuantizeProducts, TheHeadOnlyIfTheRecipeSaysSo) {
  for (const bool head : {false, true}) {
    StageGraph graph;
    GraphBuilder builder(graph);
    builder.set_scope(-1, "head");
    const ValueId x = builder.add_value({.name = "x", .dtype = DType::kBF16, .shape = {128, 128}});
    graph.stage_input = x;
    const ValueId w = builder.named_value({.name = "head.output",
                                           .dtype = DType::kBF16,
                                           .shape = {256, 128},
                                           .kind = ValueKind::kParam});
    graph.stage_output = linear(builder, x, w, std::nullopt, "logits");
    differentiate(graph);
    Fp8Recipe recipe = Fp8Recipe::blocks();
    recipe.head = head;
    const auto sites = quantize_products(graph, recipe);
    EXPECT_EQ(sites.size(), head ? 1u : 0u);
    EXPECT_EQ(graph.weights.size(), head ? 1u : 0u);
    EXPECT_EQ(graph.forward.back().spec.op, head ? "scaled_linear" : "linear");
    EXPECT_EQ(graph.backward.back().spec.op, head ? "scaled_linear_wgrad" : "linear_wgrad");
  }
}

// So the wider values need not be kept.
TEST(QuantizeProducts, BackwardReadsNoForwardValueButCopies) {
  StageGraph graph = two_products(128, 128);
  quantize_products(graph, Fp8Recipe::blocks());
  EXPECT_FALSE(reads_value(graph.backward, graph, "x"));
  EXPECT_FALSE(reads_value(graph.backward, graph, "layers.0.first"));
  EXPECT_TRUE(reads_value(graph.backward, graph, "x.column"));
  EXPECT_FALSE(reads_value(graph.backward, graph, "x.row"));
}

TEST(QuantizeProducts, GradientsOfWeightsWaitForNoOtherNodes) {
  StageGraph graph = two_products(128, 128);
  quantize_products(graph, Fp8Recipe::blocks());
  for (const Node& node : graph.backward) {
    EXPECT_EQ(node.phase == Phase::kWgrad, node.spec.op == "scaled_linear_wgrad");
  }
}

TEST(QuantizeProducts, TypesAreThoseOfTheRecipe) {
  for (const Fp8Recipe& recipe : {Fp8Recipe::tensor(), Fp8Recipe::blocks(), Fp8Recipe::mx()}) {
    StageGraph graph = two_products(256, 128);
    quantize_products(graph, recipe);
    const DType gradient = recipe.block == 0 ? DType::kF8E5M2 : DType::kF8E4M3;
    for (const Value& value : graph.values) {
      if (value.name.ends_with(".row") || value.name.ends_with(".column")) {
        EXPECT_EQ(value.dtype,
                  value.name.find(".grad") == std::string::npos ? DType::kF8E4M3 : gradient)
            << value.name;
      } else if (value.name.ends_with("scales")) {
        EXPECT_EQ(value.dtype, recipe.block == 32 ? DType::kF8E8M0 : DType::kF32) << value.name;
      }
    }
  }
}

TEST(QuantizeProducts, ProductsSumAsTheRecipeSays) {
  for (const bool hopper : {false, true}) {
    StageGraph graph = two_products(128, 128);
    Fp8Recipe recipe = Fp8Recipe::blocks();
    recipe.sums.hopper_sums = hopper;
    quantize_products(graph, recipe);
    for (const auto* nodes : {&graph.forward, &graph.backward}) {
      for (const Node& node : *nodes) {
        const bool is_product = node.spec.op.starts_with("scaled_linear");
        EXPECT_EQ(node.spec.find_attribute("hopper_sums") != nullptr, hopper && is_product)
            << node.spec.op;
      }
    }
  }
}

TEST(QuantizeProducts, BiasGradientComesWithTheCopiesOfDy) {
  StageGraph graph = two_products(128, 128, /*has_bias=*/true);
  quantize_products(graph, Fp8Recipe::blocks());
  const auto with_bias = std::ranges::count_if(graph.backward, [&](const Node& node) {
    return node.spec.op == "quantize" &&
           graph.value(node.operands.back()).kind == ValueKind::kMainGrad;
  });
  EXPECT_EQ(with_bias, 1);
}

TEST(QuantizeProducts, EachFactorHasATallyIfTheRecipeWatches) {
  for (const bool has_bias : {false, true}) {
    StageGraph graph = two_products(128, 128, has_bias);
    Fp8Recipe recipe = Fp8Recipe::blocks();
    recipe.watch = true;
    const std::vector<ProductSite> sites = quantize_products(graph, recipe);
    std::vector<std::string> tallies;
    for (const auto* nodes : {&graph.forward, &graph.weights, &graph.backward}) {
      for (const Node& node : *nodes) {
        const bool rounds = node.spec.op.starts_with("quantize");
        EXPECT_EQ(has_tally(node.spec), rounds) << node.spec.op;
        if (rounds) {
          const Value& tally = graph.value(node.operands.back());
          EXPECT_EQ(tally.kind, ValueKind::kTally);
          tallies.push_back(tally.name);
        }
      }
    }
    std::vector<std::string> expected;
    for (const char* const factor : {".x", ".w", ".dy"}) {
      for (const ProductSite& site : sites) {
        expected.push_back(site.site + factor);
      }
    }
    EXPECT_THAT(tallies, ::testing::UnorderedElementsAreArray(expected));
  }
}

TEST(QuantizeProducts, ForwardAloneHasRowsOnly) {
  StageGraph graph = two_products(128, 128, false, /*backward=*/false);
  quantize_products(graph, Fp8Recipe::blocks());
  for (const Value& value : graph.values) {
    EXPECT_THAT(value.name, ::testing::Not(HasSubstr("column")));
  }
}

TEST(QuantizeProducts, SizesThatAreNoMultiplesStay) {
  StageGraph graph = two_products(128, 96);
  const auto sites = quantize_products(graph, Fp8Recipe::blocks());
  EXPECT_EQ(sites[0].reason, "96 inputs: no multiple of 128");
  EXPECT_EQ(sites[1].reason, "");
  EXPECT_THAT(ops_of(graph.forward), ElementsAre("linear", "quantize", "scaled_linear"));
  graph = two_products(100, 128);
  for (const ProductSite& site : quantize_products(graph, Fp8Recipe::mx())) {
    EXPECT_EQ(site.reason, "100 tokens: no multiple of 128");
  }
  graph = two_products(48, 96);
  for (const ProductSite& site : quantize_products(graph, Fp8Recipe::tensor())) {
    EXPECT_EQ(site.reason, "");
  }
}

TEST(QuantizeProducts, KeepsWhatThePatternsName) {
  StageGraph graph = two_products(128, 128);
  Fp8Recipe recipe = Fp8Recipe::blocks();
  recipe.keep = {"layers.?.fir*"};
  const auto sites = quantize_products(graph, recipe);
  EXPECT_EQ(sites[0].reason, "kept by \"layers.?.fir*\"");
  EXPECT_EQ(sites[1].reason, "");
  EXPECT_THAT(ops_of(graph.backward),
              ElementsAre("quantize", "scaled_linear_dgrad", "scaled_linear_wgrad", "linear_dgrad",
                          "linear_wgrad"));
}

/// Rows of three experts of [features, depth], by their matrices and those of another size.
StageGraph products_of_experts(int64_t features, int64_t depth, bool backward = true) {
  StageGraph graph;
  GraphBuilder builder(graph);
  builder.set_scope(0, "layers.0");
  const ValueId x = builder.add_value({.name = "x", .dtype = DType::kBF16, .shape = {37, depth}});
  const ValueId offsets =
      builder.add_value({.name = "offsets", .dtype = DType::kI32, .shape = {4}});
  graph.stage_input = x;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    return builder.named_value(
        {.name = name, .dtype = DType::kBF16, .shape = shape, .kind = ValueKind::kParam});
  };
  const ValueId h =
      grouped_linear(builder, x, weight("w1", {3 * features, depth}), offsets, "moe.fc1");
  graph.stage_output =
      grouped_linear(builder, h, weight("w2", {3 * 128, features}), offsets, "moe.fc2");
  if (backward) {
    differentiate(graph);
  }
  return graph;
}

Fp8Recipe recipe_with_experts() {
  Fp8Recipe recipe = Fp8Recipe::blocks();
  recipe.experts = true;
  return recipe;
}

// Their rows need not be a multiple of 128.
TEST(QuantizeProducts, AllThreeOfExperts) {
  StageGraph graph = products_of_experts(256, 128);
  const auto sites = quantize_products(graph, recipe_with_experts());
  EXPECT_THAT(ops_of(graph.forward), ElementsAre("quantize_grouped", "scaled_grouped_linear",
                                                 "quantize_grouped", "scaled_grouped_linear"));
  EXPECT_THAT(ops_of(graph.weights), ElementsAre("quantize_weight", "quantize_weight"));
  EXPECT_THAT(ops_of(graph.backward),
              ElementsAre("quantize_grouped", "scaled_grouped_linear_dgrad",
                          "scaled_grouped_linear_wgrad", "quantize_grouped",
                          "scaled_grouped_linear_dgrad", "scaled_grouped_linear_wgrad"));
  ASSERT_EQ(sites.size(), 2u);
  EXPECT_EQ(sites[0].site, "layers.0.moe.fc1");
  EXPECT_EQ(sites[0].rows, 37);
  EXPECT_EQ(sites[0].features, 256);
  EXPECT_EQ(sites[0].depth, 128);
  EXPECT_EQ(sites[0].experts, 3);
  EXPECT_FALSE(reads_value(graph.backward, graph, "x"));
  EXPECT_TRUE(reads_value(graph.backward, graph, "x.column"));
  for (const Node& node : graph.backward) {
    EXPECT_EQ(node.phase == Phase::kWgrad, node.spec.op == "scaled_grouped_linear_wgrad");
    check_spec(node.spec);
  }
  graph = products_of_experts(256, 128, /*backward=*/false);
  quantize_products(graph, recipe_with_experts());
  for (const Value& value : graph.values) {
    EXPECT_THAT(value.name, ::testing::Not(HasSubstr("column")));
  }
}

TEST(QuantizeProducts, ExpertsStayUnlessTheRecipeSaysSo) {
  StageGraph graph = products_of_experts(256, 128);
  EXPECT_EQ(quantize_products(graph, Fp8Recipe::blocks()).size(), 0u);
  EXPECT_THAT(ops_of(graph.forward), ElementsAre("grouped_linear", "grouped_linear"));
  Fp8Recipe recipe = recipe_with_experts();
  recipe.keep = {"*.moe.fc1"};
  const auto sites = quantize_products(graph, recipe);
  EXPECT_EQ(sites[0].reason, "kept by \"*.moe.fc1\"");
  EXPECT_EQ(sites[1].reason, "");
  EXPECT_THAT(ops_of(graph.backward), ElementsAre("quantize_grouped", "scaled_grouped_linear_dgrad",
                                                  "scaled_grouped_linear_wgrad",
                                                  "grouped_linear_dgrad", "grouped_linear_wgrad"));
}

TEST(QuantizeProducts, SizesOfExpertsThatAreNoMultiplesStay) {
  StageGraph graph = products_of_experts(192, 128);
  const auto sites = quantize_products(graph, recipe_with_experts());
  EXPECT_EQ(sites[0].reason, "192 features: no multiple of 128");  // 3 x 192 would be one
  EXPECT_EQ(sites[1].reason, "192 inputs: no multiple of 128");
  EXPECT_THAT(ops_of(graph.forward), ElementsAre("grouped_linear", "grouped_linear"));
}

TEST(QuantizeProducts, FactorsOfExpertsHaveTallies) {
  StageGraph graph = products_of_experts(256, 128);
  Fp8Recipe recipe = recipe_with_experts();
  recipe.watch = true;
  quantize_products(graph, recipe);
  std::vector<std::string> tallies;
  for (const Value& value : graph.values) {
    if (value.kind == ValueKind::kTally) {
      tallies.push_back(value.name);
    }
  }
  EXPECT_THAT(tallies, ::testing::UnorderedElementsAre(
                           "layers.0.moe.fc1.x", "layers.0.moe.fc1.w", "layers.0.moe.fc1.dy",
                           "layers.0.moe.fc2.x", "layers.0.moe.fc2.w", "layers.0.moe.fc2.dy"));
}

}  // namespace
}  // namespace braid
