#include "ops/fuse_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/quantize_products.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

/// x + r -> norm -> linear -> swiglu -> linear, with FP8 products and copies as tasks of their own.
StageGraph feed_forward() {
  StageGraph graph;
  GraphBuilder builder(graph);
  builder.set_scope(0, "layers.0");
  const ValueId x = builder.add_value({.name = "x", .dtype = DType::kBF16, .shape = {128, 128}});
  graph.stage_input = x;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    return builder.named_value(
        {.name = name, .dtype = DType::kBF16, .shape = shape, .kind = ValueKind::kParam});
  };
  const ValueId r = builder.add_value({.name = "r", .dtype = DType::kBF16, .shape = {128, 128}});
  const ValueId y = add_rmsnorm(builder, x, r, weight("w0", {128}), 1e-3, "norm").normed;
  const ValueId g = linear(builder, y, weight("w1", {512, 128}), std::nullopt, "up");
  const ValueId h = swiglu(builder, g, "swiglu");
  graph.stage_output = linear(builder, h, weight("w2", {128, 256}), std::nullopt, "down");
  differentiate(graph);
  quantize_products(graph, Fp8Recipe::blocks());
  return graph;
}

std::vector<std::string> sources_of(const std::vector<Node>& nodes) {
  std::vector<std::string> sources;
  for (const Node& node : nodes) {
    if (node.spec.op == kQuantizeOp.name) {
      sources.push_back(attributes_of<QuantizeAttributes>(node.spec).source.of);
    }
  }
  return sources;
}

bool has_op(const std::vector<Node>& nodes, const std::string& op) {
  return std::ranges::any_of(nodes, [&](const Node& node) { return node.spec.op == op; });
}

TEST(FuseCopies, OfBothDirectionsOfAnActivationFunction) {
  StageGraph graph = feed_forward();
  ASSERT_TRUE(has_op(graph.forward, "swiglu"));
  fuse_copies(graph);
  EXPECT_FALSE(has_op(graph.forward, "swiglu"));
  EXPECT_FALSE(has_op(graph.backward, "swiglu_backward"));
  EXPECT_THAT(sources_of(graph.forward), ElementsAre("add_rmsnorm", "swiglu"));
  EXPECT_THAT(sources_of(graph.backward), ElementsAre("", "swiglu_backward"));
}

// Whose other results the backward reads.
TEST(FuseCopies, OfANormWithItsSumAndStatistics) {
  StageGraph graph = feed_forward();
  const Node norm = graph.forward.at(0);
  ASSERT_EQ(norm.spec.op, "add_rmsnorm");
  fuse_copies(graph);
  const Node& fused = graph.forward.at(0);
  ASSERT_EQ(fused.spec.op, "quantize");
  const size_t normed = 4;  // x, residual, w, sum, y, rstd
  std::vector<ValueId> kept = norm.operands;
  kept.erase(kept.begin() + normed);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), fused.operands.begin()));
  EXPECT_EQ(*quantize_source(fused.spec), norm.spec);  // with its epsilon
  for (const auto* const nodes : {&graph.forward, &graph.backward}) {
    for (const Node& node : *nodes) {
      EXPECT_EQ(std::ranges::count(node.operands, norm.operands[normed]), 0) << node.spec.op;
    }
  }
}

TEST(FuseCopies, KeepsWhatTheNodesSay) {
  StageGraph graph = feed_forward();
  const auto find = [&](const char* op, size_t skipped) {
    std::vector<Node> found;
    std::ranges::copy_if(graph.forward, std::back_inserter(found),
                         [&](const Node& node) { return node.spec.op == op; });
    return found.at(skipped);
  };
  const Node before = find("quantize", 1);
  const ValueId input = find("swiglu", 0).operands[0];
  fuse_copies(graph);
  const Node after = find("quantize", 1);
  EXPECT_EQ(after.operands[0], input);
  EXPECT_TRUE(std::equal(after.operands.begin() + 1, after.operands.end(),
                         before.operands.begin() + 1, before.operands.end()));
  EXPECT_EQ(after.site, before.site);
  EXPECT_EQ(after.phase, before.phase);
  EXPECT_EQ(after.layer, before.layer);
}

// Such a value must be stored anyway.
TEST(FuseCopies, NotIfSomethingElseReadsTheValue) {
  for (const bool is_output : {false, true}) {
    StageGraph graph = feed_forward();
    for (const Node& node : std::vector<Node>(graph.forward)) {
      if (node.spec.op != "swiglu") {
        continue;
      }
      const ValueId h = node.operands[1];
      if (is_output) {
        graph.stage_output = h;
        continue;
      }
      graph.values.push_back({.name = "y", .dtype = DType::kBF16, .shape = {128, 256}});
      const ValueId y(graph.values.size() - 1);
      graph.forward.push_back(
          make_node(graph, "relu2", {}, std::vector<Operand>{{h}, {y, Access::kWrite}}));
    }
    fuse_copies(graph);
    EXPECT_TRUE(has_op(graph.forward, "swiglu"));
    EXPECT_THAT(sources_of(graph.forward), ElementsAre("add_rmsnorm", ""));
    EXPECT_FALSE(has_op(graph.backward, "swiglu_backward"));
  }
}

}  // namespace
}  // namespace braid
