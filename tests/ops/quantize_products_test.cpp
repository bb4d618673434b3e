#include "ops/quantize_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/autodiff.h"
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

}  // namespace
}  // namespace braid
