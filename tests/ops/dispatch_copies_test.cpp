#include "ops/dispatch_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "ops/autodiff.h"
#include "ops/drop_rows.h"
#include "ops/expert_exchange.h"
#include "ops/expert_rows.h"
#include "ops/grouped_linear.h"
#include "ops/quantize_products.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

constexpr int64_t kTokens = 37;
constexpr int64_t kWidth = 256;
constexpr ExpertGroup kGroup{
    .name = "expert.exchange", .num_ranks = 2, .experts = 4, .copies = 1, .max_rows = 148};

struct GraphOptions {
  bool drops = false;  ///< experts have a capacity
  bool backward = true;
  bool reads_y = false;  ///< something else reads the rows that arrive
  bool reads_rows = false;
};

/// Tokens x go to two of four experts on two ranks, and their results come back.
StageGraph layer(const GraphOptions& options = {}) {
  StageGraph graph;
  GraphBuilder b(graph);
  b.set_scope(0, "layers.0");
  const auto value = [&](const std::string& name, DType dtype, const Shape& shape,
                         ValueKind kind = ValueKind::kActivation) {
    return b.named_value({.name = name, .dtype = dtype, .shape = shape, .kind = kind});
  };
  const ValueId x = value("x", DType::kBF16, {kTokens, kWidth});
  const ValueId weights = value("weights", DType::kF32, {kTokens, 2});
  graph.stage_input = x;
  const ValueId experts = value("experts", DType::kI32, {kTokens, 2}, ValueKind::kInput);
  ExpertRows rows = sort_rows(b, experts, 4, std::nullopt, "sort");
  if (options.drops) {
    rows = drop_rows(b, weights, rows, {.capacity = 9}, "drop");
  }
  const ValueId gathered = gather_rows(b, x, rows, "gather");
  const ValueId offsets = value("offsets", DType::kI32, {2 * 5}, ValueKind::kInput);
  const DispatchedRows there = dispatch_rows(b,
                                             {.x = gathered,
                                              .weights = sort_weights(b, weights, rows, "sorted"),
                                              .offsets_of_all = offsets},
                                             kGroup, std::nullopt, "dispatch");
  const auto matrix = [&](const std::string& name, const Shape& shape) {
    return value(name, DType::kBF16, shape, ValueKind::kParam);
  };
  const ValueId h =
      grouped_linear(b, there.x, matrix("w1", {2 * 256, kWidth}), there.offsets, "fc1");
  const ValueId active = routed_swiglu(b, h, there.weights, there.offsets, "swiglu");
  const ValueId y =
      grouped_linear(b, active, matrix("w2", {2 * kWidth, 128}), there.offsets, "fc2");
  const ValueId back = combine_rows(b, y, offsets, 2 * kTokens, kGroup, "combine");
  graph.stage_output = sum_rows(b, back, rows, "sum");
  for (const auto& [is_read, rows_read] :
       {std::pair{options.reads_y, there.x}, {options.reads_rows, gathered}}) {
    if (is_read) {
      const ValueId copy = b.add_activation("copy", DType::kBF16, b.value(rows_read).shape);
      b.add_node("copy", {}, std::vector<Operand>{{rows_read}, {copy, Access::kWrite}}, "copy");
    }
  }
  if (options.backward) {
    differentiate(graph);
  }
  return graph;
}

Fp8Recipe recipe(bool dispatches) {
  Fp8Recipe recipe = Fp8Recipe::blocks();
  recipe.experts = true;
  recipe.dispatches_copies = dispatches;
  return recipe;
}

/// "op(names of what it reads -> of what it writes)", of the ops whose names contain one of these.
std::vector<std::string> described(const StageGraph& graph, const std::vector<Node>& nodes,
                                   const std::vector<std::string>& parts) {
  std::vector<std::string> list;
  for (const Node& node : nodes) {
    check_spec(node.spec);
    if (std::ranges::none_of(parts, [&](const std::string& part) {
          return node.spec.op.find(part) != std::string::npos;
        })) {
      continue;
    }
    std::string text = node.spec.op + "(";
    bool wrote = false;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const bool is_first_result = !wrote && node.spec.operands[i].access == Access::kWrite;
      wrote = wrote || is_first_result;
      text += is_first_result ? " -> " : i > 0 ? ", " : "";
      text += graph.value(node.operands[i]).name;
    }
    list.push_back(text + ")");
  }
  return list;
}

const std::vector<std::string> kRewritten{"gather", "dispatch", "combine", "quantize_g",
                                          "transpose"};

TEST(DispatchCopies, SendsXAndTheGradientsOfResultsAsFp8) {
  StageGraph graph = layer();
  quantize_products(graph, recipe(true));
  EXPECT_THAT(
      described(graph, graph.forward, kRewritten),
      ElementsAre("quantize_gathered(x, layers.0.sort.pair_of, layers.0.sort.row_of -> "
                  "layers.0.gather.row, layers.0.gather.scales)",
                  "dispatch_rows(layers.0.gather.row, layers.0.sorted, layers.0.gather.scales, "
                  "offsets -> layers.0.dispatch.row, layers.0.dispatch.weights, "
                  "layers.0.dispatch.scales, layers.0.dispatch.offsets)",
                  "transpose_grouped(layers.0.dispatch.row, layers.0.dispatch.scales, "
                  "layers.0.dispatch.offsets -> layers.0.dispatch.row_scales, "
                  "layers.0.dispatch.column, layers.0.dispatch.column_scales)",
                  "quantize_grouped(layers.0.swiglu, layers.0.dispatch.offsets -> "
                  "layers.0.swiglu.row, layers.0.swiglu.row_scales, layers.0.swiglu.column, "
                  "layers.0.swiglu.column_scales)",
                  "combine_rows(layers.0.fc2, offsets -> layers.0.combine)"));
  const std::vector<std::string> backward = described(graph, graph.backward, kRewritten);
  ASSERT_EQ(backward.size(), 5u);
  EXPECT_EQ(backward[0],
            "quantize_gathered(layers.0.sum.grad, layers.0.sort.pair_of, layers.0.sort.row_of -> "
            "layers.0.combine.grad.row, layers.0.combine.grad.scales)");
  EXPECT_EQ(backward[1],
            "dispatch_rows(layers.0.combine.grad.row, layers.0.combine.grad.scales, offsets -> "
            "layers.0.fc2.grad.row, layers.0.fc2.grad.scales)");
  EXPECT_THAT(backward[2], testing::StartsWith("transpose_grouped(layers.0.fc2.grad.row, "));
  EXPECT_THAT(backward[3], testing::StartsWith("quantize_grouped(layers.0.fc1.grad, "));
  EXPECT_THAT(backward[4], testing::StartsWith("combine_rows(layers.0.dispatch.grad, "));
}

// The products read the same values as otherwise, and the backward keeps no rows.
TEST(DispatchCopies, ChangesNoProduct) {
  StageGraph plain = layer();
  quantize_products(plain, recipe(false));
  StageGraph graph = layer();
  quantize_products(graph, recipe(true));
  const std::vector<std::string> products{"scaled_grouped"};
  EXPECT_EQ(described(plain, plain.forward, products), described(graph, graph.forward, products));
  EXPECT_EQ(described(plain, plain.backward, products), described(graph, graph.backward, products));
  for (const Node& node : graph.backward) {
    for (const ValueId id : node.operands) {
      EXPECT_NE(graph.value(id).name, "layers.0.dispatch.row") << node.spec.op;
      EXPECT_NE(graph.value(id).name, "layers.0.gather.row") << node.spec.op;
    }
  }
}

TEST(DispatchCopies, PhasesAndPlacesAreThoseOfTheNodesBefore) {
  StageGraph graph = layer();
  quantize_products(graph, recipe(true));
  const auto node_of = [](const std::vector<Node>& nodes, const std::string& op) {
    return *std::ranges::find_if(nodes, [&](const Node& node) { return node.spec.op == op; });
  };
  EXPECT_EQ(node_of(graph.forward, "quantize_gathered").phase, Phase::kForward);
  EXPECT_EQ(node_of(graph.forward, "quantize_gathered").site, "layers.0.fc1");
  EXPECT_EQ(node_of(graph.backward, "quantize_gathered").phase, Phase::kDgrad);
  EXPECT_EQ(node_of(graph.backward, "quantize_gathered").site, "layers.0.fc2");
  EXPECT_EQ(node_of(graph.backward, "transpose_grouped").phase, Phase::kDgrad);
  EXPECT_EQ(node_of(graph.backward, "dispatch_rows").phase, Phase::kComm);
  EXPECT_EQ(node_of(graph.forward, "dispatch_rows").site, "layers.0.dispatch");
}

TEST(DispatchCopies, PairsThatExpertsDropAreNotRounded) {
  StageGraph graph = layer({.drops = true});
  quantize_products(graph, recipe(true));
  for (const auto* const nodes : {&graph.forward, &graph.backward}) {
    const std::vector<std::string> list = described(graph, *nodes, {"quantize_gathered"});
    ASSERT_EQ(list.size(), 1u);
    EXPECT_THAT(list[0], testing::HasSubstr("layers.0.drop.offsets -> "));
  }
}

TEST(DispatchCopies, AForwardAloneMakesNoColumns) {
  StageGraph graph = layer({.backward = false});
  quantize_products(graph, recipe(true));
  EXPECT_THAT(described(graph, graph.forward, {"transpose"}),
              ElementsAre("transpose_grouped(layers.0.dispatch.row, layers.0.dispatch.scales, "
                          "layers.0.dispatch.offsets -> layers.0.dispatch.row_scales)"));
}

TEST(DispatchCopies, RowsThatSomethingElseReadsStay) {
  for (const GraphOptions& options : {GraphOptions{.backward = false, .reads_y = true},
                                      {.backward = false, .reads_rows = true}}) {
    StageGraph plain = layer(options);
    quantize_products(plain, recipe(false));
    StageGraph graph = layer(options);
    quantize_products(graph, recipe(true));
    EXPECT_EQ(described(plain, plain.forward, kRewritten),
              described(graph, graph.forward, kRewritten));
  }
}

// x of fc1 stays, dy of fc2 does not, and the other way round.
TEST(DispatchCopies, RowsOfProductsThatStayTravelAsTheyAre) {
  for (const bool keeps_fc1 : {true, false}) {
    StageGraph graph = layer();
    Fp8Recipe kept = recipe(true);
    kept.keep = {keeps_fc1 ? "*.fc1" : "*.fc2"};
    const std::vector<ProductSite> sites = quantize_products(graph, kept);
    EXPECT_EQ(sites[0].sent, SentFactor::kX);
    EXPECT_EQ(sites[1].sent, SentFactor::kDy);
    const auto sends = [&](const std::vector<Node>& nodes) {
      return !described(graph, nodes, {"quantize_gathered"}).empty();
    };
    EXPECT_EQ(sends(graph.forward), !keeps_fc1);
    EXPECT_EQ(sends(graph.backward), keeps_fc1);
  }
}

TEST(DispatchCopies, BothTasksOfAFactorCountInItsTally) {
  StageGraph graph = layer();
  Fp8Recipe watching = recipe(true);
  watching.watch = true;
  quantize_products(graph, watching);
  const auto tally_of = [&](const std::vector<Node>& nodes, const std::string& op) {
    const auto found =
        std::ranges::find_if(nodes, [&](const Node& node) { return node.spec.op == op; });
    EXPECT_TRUE(has_tally(found->spec)) << op;
    return graph.value(found->operands.back()).name;
  };
  EXPECT_EQ(tally_of(graph.forward, "quantize_gathered"), "layers.0.fc1.x");
  EXPECT_EQ(tally_of(graph.forward, "transpose_grouped"), "layers.0.fc1.x");
  EXPECT_EQ(tally_of(graph.backward, "quantize_gathered"), "layers.0.fc2.dy");
  EXPECT_EQ(tally_of(graph.backward, "transpose_grouped"), "layers.0.fc2.dy");
}

}  // namespace
}  // namespace braid
