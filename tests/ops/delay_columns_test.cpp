#include "ops/delay_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/linear.h"
#include "ops/quantize.h"
#include "ops/quantize_products.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two products of one x, of which the second may stay as it is: its weight gradient reads x.
StageGraph products_of_one_value() {
  StageGraph graph;
  GraphBuilder builder(graph);
  builder.set_scope(0, "layers.0");
  const ValueId x = builder.add_value({.name = "x", .dtype = DType::kBF16, .shape = {128, 128}});
  graph.stage_input = x;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    return builder.named_value(
        {.name = name, .dtype = DType::kBF16, .shape = shape, .kind = ValueKind::kParam});
  };
  const ValueId a = linear(builder, x, weight("w1", {128, 128}), std::nullopt, "narrow");
  const ValueId b = linear(builder, x, weight("w2", {128, 128}), std::nullopt, "wide");
  const ValueId sum = builder.add_activation("sum", DType::kBF16, {128, 128});
  builder.add_node("add", {}, std::vector<Operand>{{a}, {b}, {sum, Access::kWrite}}, "sum");
  graph.stage_output = sum;
  differentiate(graph);
  return graph;
}

Fp8Recipe with_wide_product(Fp8Recipe recipe) {
  recipe.keep = {"*.wide"};
  return recipe;
}

/// "row", "column" or "both", and the phase, of each node that copies x.
std::vector<std::string> copies_of_x(const StageGraph& graph, const std::vector<Node>& nodes) {
  std::vector<std::string> copies;
  for (const Node& node : nodes) {
    if (node.spec.op == kQuantizeOp.name && graph.value(node.operands[0]).name == "x") {
      const auto attributes = attributes_of<QuantizeAttributes>(node.spec);
      const std::string kind = attributes.row && attributes.column ? "both"
                               : attributes.row                    ? "row"
                                                                   : "column";
      EXPECT_EQ(node.site, "layers.0.narrow");
      EXPECT_EQ(node.layer, 0);
      copies.push_back(kind + (node.phase == Phase::kForward ? " in forward"
                               : node.phase == Phase::kDgrad ? " in dgrad"
                                                             : " in wgrad"));
    }
  }
  return copies;
}

TEST(DelayColumns, OfAValueThatTheBackwardKeeps) {
  for (const Fp8Recipe& recipe : {Fp8Recipe::blocks(), Fp8Recipe::mx()}) {
    StageGraph graph = products_of_one_value();
    quantize_products(graph, with_wide_product(recipe));
    EXPECT_THAT(copies_of_x(graph, graph.forward), ElementsAre("row in forward"));
    EXPECT_THAT(copies_of_x(graph, graph.backward), ElementsAre("column in dgrad"));
  }
}

TEST(DelayColumns, InFrontOfTheirFirstReader) {
  StageGraph graph = products_of_one_value();
  quantize_products(graph, with_wide_product(Fp8Recipe::blocks()));
  const auto made = std::ranges::find_if(graph.backward, [&](const Node& node) {
    return node.spec.op == kQuantizeOp.name && graph.value(node.operands[0]).name == "x";
  });
  ASSERT_NE(made, graph.backward.end());
  ASSERT_NE(made + 1, graph.backward.end());
  EXPECT_EQ((made + 1)->spec.op, "scaled_linear_wgrad");
  EXPECT_EQ((made + 1)->operands[0], made->operands[1]);
  EXPECT_EQ((made + 1)->operands[1], made->operands[2]);
}

// Nothing in the forward writes what the backward makes.
TEST(DelayColumns, EachCopyIsWrittenOnce) {
  StageGraph graph = products_of_one_value();
  quantize_products(graph, with_wide_product(Fp8Recipe::blocks()));
  std::vector<int> writers(graph.values.size());
  for (const auto* const nodes : {&graph.forward, &graph.backward}) {
    for (const Node& node : *nodes) {
      for (size_t i = 0; i < node.operands.size(); ++i) {
        writers[node.operands[i].index()] += node.spec.operands[i].access == Access::kWrite ? 1 : 0;
      }
    }
  }
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.kind == ValueKind::kActivation && value.name.starts_with("x.")) {
      EXPECT_EQ(writers[i], 1) << value.name;
    }
  }
}

TEST(DelayColumns, NotIfNothingElseReadsTheValueInTheBackward) {
  StageGraph graph = products_of_one_value();
  quantize_products(graph, Fp8Recipe::blocks());
  EXPECT_THAT(copies_of_x(graph, graph.forward), ElementsAre("both in forward"));
  EXPECT_THAT(copies_of_x(graph, graph.backward), IsEmpty());
}

// Each of two nodes would read all of the value for its scale.
TEST(DelayColumns, NotWithOneScaleForAll) {
  StageGraph graph = products_of_one_value();
  quantize_products(graph, with_wide_product(Fp8Recipe::tensor()));
  EXPECT_THAT(copies_of_x(graph, graph.forward), ElementsAre("both in forward"));
}

TEST(DelayColumns, OnlyIfTheRecipeSaysSo) {
  Fp8Recipe recipe = with_wide_product(Fp8Recipe::blocks());
  recipe.delays_columns = false;
  StageGraph graph = products_of_one_value();
  quantize_products(graph, recipe);
  EXPECT_THAT(copies_of_x(graph, graph.forward), ElementsAre("both in forward"));
}

TEST(DelayColumns, BothNodesCountInTheSameTally) {
  Fp8Recipe recipe = with_wide_product(Fp8Recipe::blocks());
  recipe.watch = true;
  StageGraph graph = products_of_one_value();
  quantize_products(graph, recipe);
  std::vector<std::string> tallies;
  for (const auto* const nodes : {&graph.forward, &graph.backward}) {
    for (const Node& node : *nodes) {
      if (node.spec.op == kQuantizeOp.name && graph.value(node.operands[0]).name == "x") {
        tallies.push_back(graph.value(node.operands.back()).name);
      }
    }
  }
  EXPECT_THAT(tallies, ElementsAre("layers.0.narrow.x", "layers.0.narrow.x"));
}

}  // namespace
}  // namespace braid
