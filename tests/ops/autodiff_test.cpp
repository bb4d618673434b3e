#include "ops/autodiff.h"

#include <algorithm>
#include <array>

#include "base/expect_error.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/forward_graph.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kLossBackward =
    "cross_entropy_backward(logits, labels, loss_scale, loss.lse -> logits.grad)";

TEST(Differentiate, StartsAtTheLossAndRunsBackwards) {
  Forward forward;
  forward.loss_of(gelu(forward.builder(), forward.activation("x", {kRows, 6}), "gelu"));
  EXPECT_THAT(backward_of(forward.differentiated()),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> gelu.grad)",
                          "linear_wgrad(gelu, logits.grad -> +head.main_grad)",
                          "gelu_backward(x, gelu.grad -> x.grad)"));
}

// The gradient of a sharded loss needs nothing of other ranks: it does not pass the gathered
// statistics.
TEST(ShardedLossBackward, CommunicatesNothing) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  const ValueId head = forward.param("head", {kVocabulary / 2, 6});
  forward.sharded_loss_of_logits(linear(forward.builder(), x, head, std::nullopt, "logits"));
  const StageGraph& graph = forward.differentiated();
  EXPECT_THAT(backward_of(graph),
              ElementsAre("cross_entropy_backward(logits, labels, loss_scale, sharded_loss.lse -> "
                          "logits.grad)",
                          "linear_dgrad(logits.grad, head -> x.grad)",
                          "linear_wgrad(x, logits.grad -> +head.main_grad)"));
  EXPECT_EQ(attributes_of<CrossEntropyShardAttributes>(graph.backward[0].spec).vocabulary_begin,
            kVocabulary / 2);
  EXPECT_EQ(graph.groups, std::vector<std::string>{"tensor"});
}

TEST(ShardedLossBackward, NeedsTheStatisticsOfLogits) {
  Forward forward;
  GraphBuilder& builder = forward.builder();
  const auto f32 = [&](const char* name, Shape shape) {
    return builder.named_value({.name = name, .dtype = DType::kF32, .shape = shape});
  };
  const ValueId copied = add(builder, f32("a", {kRows, 3}), f32("b", {kRows, 3}), "copied");
  const ValueId stats = add(builder, copied, copied, "stats");
  builder.add_node("cross_entropy_merge", {},
                   std::array{Operand{stats}, Operand{forward.tokens("labels")},
                              Operand{f32("scale", {1})}, Operand{f32("loss", {1}), Access::kWrite},
                              Operand{f32("lse", {kRows}), Access::kWrite}},
                   "merge");
  EXPECT_EQ(message_of<InternalError>([&] { differentiate(forward.graph()); }),
            "op cross_entropy_merge at merge reads statistics of op add");
}

TEST(Producer, IsTheNodeThatWritesAValue) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  const ValueId y = gelu(forward.builder(), x, "y");
  gelu(forward.builder(), y, "z");
  BackwardBuilder builder(forward.graph());
  EXPECT_EQ(builder.producer_of(y).site, "y");
  EXPECT_EQ(message_of<InternalError>([&] { builder.producer_of(x); }), "no op writes x");
}

TEST(StageEnds, CarryGradientsInTheOppositeDirection) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  const ValueId y = gelu(forward.builder(), gelu(forward.builder(), x, "h"), "y");
  forward.graph().stage_input = x;
  forward.graph().stage_output = y;
  const StageGraph& graph = forward.differentiated();
  EXPECT_THAT(backward_of(graph), ElementsAre("gelu_backward(h, y.grad -> h.grad)",
                                              "gelu_backward(x, h.grad -> x.grad)"));
  EXPECT_EQ(graph.value(*graph.stage_output_grad),
            (Value{.name = "y.grad", .dtype = DType::kBF16, .shape = {kRows, 6}}));
  EXPECT_EQ(graph.value(*graph.stage_input_grad).name, "x.grad");
}

// What is used inside the stage too gets the sum of both gradients.
TEST(StageEnds, AddToGradientsOfOtherUses) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  forward.loss_of(gelu(forward.builder(), x, "h"));
  forward.graph().stage_output = x;
  const StageGraph& graph = forward.differentiated();
  EXPECT_EQ(backward_of(graph).back(), "add(x.grad, x.grad_addend -> x.grad_sum)");
  EXPECT_EQ(graph.value(*graph.stage_output_grad).name, "x.grad");
}

TEST(StageEnds, RefuseAnInputThatLeadsNowhere) {
  Forward forward;
  forward.graph().stage_input = forward.activation("x", {kRows, 6});
  forward.loss_of(forward.activation("y", {kRows, 6}));
  EXPECT_EQ(message_of<InternalError>([&] { differentiate(forward.graph()); }),
            "the stage's input does not lead to its end");
}

TEST(LinearBackward, GivesABiasThatIsLeftOutItsGradient) {
  Forward forward;
  const ValueId logits = linear(forward.builder(),
                                {.x = forward.input("x", {kRows, 6}),
                                 .weight = forward.param("w", {kVocabulary, 6}),
                                 .bias = forward.param("b", {kVocabulary}),
                                 .adds_bias = false},
                                "logits");
  forward.loss_of_logits(logits);
  EXPECT_THAT(
      backward_of(forward.differentiated()),
      ElementsAre(kLossBackward, "linear_wgrad(x, logits.grad -> +w.main_grad, +b.main_grad)"));
}

TEST(Differentiate, KeepsLayerAndSiteAndTellsDgradFromWgrad) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  forward.builder().set_scope(5, "layers.5");
  const ValueId y =
      linear(forward.builder(), x, forward.param("w", {6, 6}), std::nullopt, "mlp.fc1");
  forward.builder().set_scope(-1, "");
  forward.loss_of(y);
  const auto& backward = forward.differentiated().backward;
  ASSERT_EQ(backward.size(), 5u);
  const Phase phases[] = {Phase::kDgrad, Phase::kDgrad, Phase::kWgrad, Phase::kDgrad,
                          Phase::kWgrad};
  const char* const sites[] = {"loss", "logits", "logits", "layers.5.mlp.fc1", "layers.5.mlp.fc1"};
  for (size_t i = 0; i < backward.size(); ++i) {
    EXPECT_EQ(backward[i].phase, phases[i]) << i;
    EXPECT_EQ(backward[i].site, sites[i]) << i;
    EXPECT_EQ(backward[i].layer, i < 3 ? -1 : 5) << i;
  }
}

TEST(Differentiate, GivesGradientsTheTypeOfTheirValuesAndMainGradsF32) {
  Forward forward(DType::kBF16);
  forward.loss_of(forward.activation("x", {kRows, 6}));
  for (const Value& value : forward.differentiated().values) {
    if (value.name == "x.grad") {
      EXPECT_EQ(value.dtype, DType::kBF16);
      EXPECT_EQ(value.shape, (Shape{kRows, 6}));
    }
    if (value.kind == ValueKind::kMainGrad) {
      EXPECT_EQ(value.name, "head");
      EXPECT_EQ(value.dtype, DType::kF32);
      EXPECT_EQ(value.shape, (Shape{kVocabulary, 6}));
    }
  }
}

// Ops whose kernels write fp32 alone do so for a bf16 main grad, too: another task adds it.
TEST(Differentiate, WritesMainGradsInBf16WhereTheOpCan) {
  Forward forward(DType::kBF16);
  GraphBuilder& builder = forward.builder();
  const ValueId x = forward.activation("x", {kRows, 6});
  forward.loss_of(rmsnorm(builder, x, forward.param("norm", {6}), 1e-5, "norm"));
  differentiate(forward.graph(), DType::kBF16);
  for (const Value& value : forward.graph().values) {
    EXPECT_TRUE(value.kind != ValueKind::kMainGrad || value.dtype == DType::kBF16) << value.name;
  }
  for (const Node& node : forward.graph().backward) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (forward.graph().value(node.operands[i]).kind == ValueKind::kMainGrad) {
        const bool is_product = node.spec.op == "linear_wgrad";
        EXPECT_EQ(node.spec.operands[i].dtype, is_product ? DType::kBF16 : DType::kF32)
            << node.spec.op;
      }
    }
  }
}

TEST(Differentiate, RefusesAGraphThatHasABackward) {
  Forward forward;
  forward.loss_of(forward.activation("x", {kRows, 6}));
  forward.differentiated();
  EXPECT_THAT(message_of<InternalError>([&] { differentiate(forward.graph()); }),
              HasSubstr("has a backward already"));
}

TEST(LinearBackward, GivesInputsNoGradient) {
  Forward forward;
  forward.loss_of(forward.input("x", {kRows, 6}));
  EXPECT_THAT(backward_of(forward.differentiated()),
              ElementsAre(kLossBackward, "linear_wgrad(x, logits.grad -> +head.main_grad)"));
}

TEST(LinearBackward, AddsTheBiasGradientToWgrad) {
  Forward forward;
  const ValueId w = forward.param("w", {kVocabulary, 6});
  const ValueId b = forward.param("b", {kVocabulary});
  forward.loss_of_logits(linear(forward.builder(), forward.input("x", {kRows, 6}), w, b, "logits"));
  EXPECT_THAT(
      backward_of(forward.differentiated()),
      ElementsAre(kLossBackward, "linear_wgrad(x, logits.grad -> +w.main_grad, +b.main_grad)"));
}

TEST(Uses, OfNothingThatLeadsToTheLossGetNoBackward) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  gelu(forward.builder(), x, "unused");
  rmsnorm(forward.builder(), x, forward.param("unused_weight", {6}), 1e-5, "unused_norm");
  forward.loss_of(x);
  EXPECT_THAT(backward_of(forward.differentiated()),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> x.grad)",
                          "linear_wgrad(x, logits.grad -> +head.main_grad)"));
}

TEST(TwoUses, OfAValueAreSummedByAnAddNode) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  const ValueId sum = add(forward.builder(), gelu(forward.builder(), x, "a"),
                          gelu(forward.builder(), x, "b"), "sum");
  forward.loss_of(gelu(forward.builder(), sum, "y"));
  EXPECT_THAT(
      backward_of(forward.differentiated()),
      ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> y.grad)",
                  "linear_wgrad(y, logits.grad -> +head.main_grad)",
                  "gelu_backward(sum, y.grad -> sum.grad)", "gelu_backward(x, sum.grad -> x.grad)",
                  "gelu_backward(x, sum.grad -> x.grad_addend)",
                  "add(x.grad, x.grad_addend -> x.grad_sum)"));
}

TEST(TwoUses, AreSummedAtTheEarlierUseBeforeTheValueIsDifferentiated) {
  Forward forward;
  const ValueId x = gelu(forward.builder(), forward.activation("input", {kRows, 6}), "x");
  const ValueId y = gelu(forward.builder(), x, "y");
  forward.loss_of(add(forward.builder(), x, y, "sum"));
  EXPECT_THAT(backward_of(forward.differentiated()),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> sum.grad)",
                          "linear_wgrad(sum, logits.grad -> +head.main_grad)",
                          "gelu_backward(x, sum.grad -> x.grad_addend)",
                          "add(sum.grad, x.grad_addend -> x.grad_sum)",
                          "gelu_backward(input, x.grad_sum -> input.grad)"));
}

TEST(TwoUses, ByOneNodeCountTwice) {
  Forward forward;
  const ValueId x = gelu(forward.builder(), forward.activation("input", {kRows, 6}), "x");
  forward.loss_of(add(forward.builder(), x, x, "twice"));
  EXPECT_THAT(backward_of(forward.differentiated()),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> twice.grad)",
                          "linear_wgrad(twice, logits.grad -> +head.main_grad)",
                          "add(twice.grad, twice.grad -> x.grad_sum)",
                          "gelu_backward(input, x.grad_sum -> input.grad)"));
}

TEST(TiedParameter, HasOneMainGradThatBothUsesAddTo) {
  Forward forward;
  const ValueId table = forward.param("table", {kVocabulary, 6});
  const ValueId x =
      embedding(forward.builder(), forward.tokens("tokens"), table, std::nullopt, kSequence, "x");
  forward.loss_of_logits(linear(forward.builder(), x, table, std::nullopt, "logits"));
  const StageGraph& graph = forward.differentiated();
  EXPECT_THAT(backward_of(graph),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, table -> x.grad)",
                          "linear_wgrad(x, logits.grad -> +table.main_grad)",
                          "embedding_wgrad(tokens, x.grad -> +table.main_grad)"));
  EXPECT_EQ(graph.backward[2].operands.back(), graph.backward[3].operands.back());
  EXPECT_EQ(std::count_if(graph.values.begin(), graph.values.end(),
                          [](const Value& v) { return v.kind == ValueKind::kMainGrad; }),
            1);
}

TEST(EmbeddingBackward, GivesPositionsTheirOwnWgrad) {
  Forward forward;
  const ValueId x =
      embedding(forward.builder(), forward.tokens("tokens"), forward.param("table", {30, 6}),
                forward.param("positions", {9, 6}), kSequence, "x");
  forward.loss_of(x);
  const StageGraph& graph = forward.differentiated();
  const auto list = backward_of(graph);
  ASSERT_EQ(list.size(), 5u);
  EXPECT_EQ(list[3], "position_embedding_wgrad(x.grad -> +positions.main_grad)");
  EXPECT_EQ(list[4], "embedding_wgrad(tokens, x.grad -> +table.main_grad)");
  EXPECT_EQ(graph.backward[3].phase, Phase::kWgrad);
  EXPECT_EQ(graph.backward[4].phase, Phase::kWgrad);
}

TEST(RopeBackward, IsTheInverseRotationOfTheGradient) {
  for (const bool inverse : {false, true}) {
    Forward forward;
    const RopeAttributes attributes{.heads = 2,
                                    .kv_heads = 1,
                                    .head_size = 4,
                                    .sequence = kSequence,
                                    .theta = 500.0,
                                    .inverse = inverse};
    forward.loss_of(
        rope(forward.builder(), forward.activation("qkv", {kRows, 16}), attributes, "rope"));
    const StageGraph& graph = forward.differentiated();
    EXPECT_EQ(describe(graph, graph.backward.back()), "rope(rope.grad -> qkv.grad)");
    RopeAttributes expected = attributes;
    expected.inverse = !inverse;
    EXPECT_EQ(graph.backward.back().spec.attributes, to_attributes(expected));
  }
}

TEST(AttentionBackward, ReadsTheSavedOutputAndStatistics) {
  Forward forward;
  forward.loss_of(attention(forward.builder(), forward.activation("qkv", {kRows, 16}),
                            {.heads = 2, .kv_heads = 1, .head_size = 4, .sequence = kSequence},
                            "core"));
  const StageGraph& graph = forward.differentiated();
  EXPECT_EQ(describe(graph, graph.backward.back()),
            "attention_backward(qkv, core, core.lse, core.grad -> qkv.grad)");
  EXPECT_EQ(graph.backward.back().spec.attributes, graph.forward.front().spec.attributes);
}

TEST(NormBackward, GivesWeightAndBiasTheirMainGrads) {
  Forward forward;
  forward.loss_of(layernorm(forward.builder(), forward.activation("x", {kRows, 6}),
                            forward.param("w", {6}), forward.param("b", {6}), 1e-5, "norm"));
  const StageGraph& graph = forward.differentiated();
  EXPECT_EQ(describe(graph, graph.backward.back()),
            "layernorm_backward(x, w, norm.mean, norm.rstd, norm.grad -> x.grad, +w.main_grad, "
            "+b.main_grad)");
  EXPECT_EQ(graph.backward.back().phase, Phase::kDgrad);
}

/// branch and residual, normed together; the loss sees the normed value, the sum, or both.
StageGraph residual_graph(bool uses_normed, bool uses_sum) {
  Forward forward;
  GraphBuilder& builder = forward.builder();
  const ValueId branch = gelu(builder, forward.activation("a", {kRows, 6}), "branch");
  const ValueId residual = gelu(builder, forward.activation("b", {kRows, 6}), "residual");
  const AddNormResult result =
      add_rmsnorm(builder, branch, residual, forward.param("w", {6}), 1e-5, "norm");
  const ValueId normed = uses_normed ? gelu(builder, result.normed, "y") : result.sum;
  forward.loss_of(uses_normed && uses_sum ? add(builder, normed, result.sum, "out") : normed);
  return forward.differentiated();
}

TEST(AddNormBackward, GivesBothAddendsOneGradient) {
  const StageGraph graph = residual_graph(true, false);
  EXPECT_THAT(backward_of(graph),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> y.grad)",
                          "linear_wgrad(y, logits.grad -> +head.main_grad)",
                          "gelu_backward(norm, y.grad -> norm.grad)",
                          "rmsnorm_backward(norm.sum, w, norm.rstd, norm.grad -> branch.grad, "
                          "+w.main_grad)",
                          "gelu_backward(b, branch.grad -> b.grad)",
                          "gelu_backward(a, branch.grad -> a.grad)"));
}

TEST(AddNormBackward, TakesTheGradientOfTheSumAlong) {
  const StageGraph graph = residual_graph(true, true);
  const auto list = backward_of(graph);
  ASSERT_EQ(list.size(), 7u);
  EXPECT_EQ(list[3], "gelu_backward(norm, out.grad -> norm.grad)");
  EXPECT_EQ(list[4],
            "rmsnorm_backward(norm.sum, w, norm.rstd, norm.grad, out.grad -> branch.grad, "
            "+w.main_grad)");
  EXPECT_EQ(list[5], "gelu_backward(b, branch.grad -> b.grad)");
  EXPECT_TRUE(attributes_of<NormBackwardAttributes>(graph.backward[4].spec).has_d_sum);
}

TEST(AddNormBackward, PassesTheGradientOfTheSumOnIfTheNormIsUnused) {
  const StageGraph graph = residual_graph(false, true);
  EXPECT_THAT(backward_of(graph),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> norm.sum.grad)",
                          "linear_wgrad(norm.sum, logits.grad -> +head.main_grad)",
                          "gelu_backward(b, norm.sum.grad -> b.grad)",
                          "gelu_backward(a, norm.sum.grad -> a.grad)"));
}

TEST(OpWithoutBackward, IsRefusedByNameAndSiteIfItLeadsToTheLoss) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  const ValueId y = forward.activation("y", {kRows, 6});
  forward.builder().add_node("copy", {}, std::array{Operand{x}, Operand{y, Access::kWrite}},
                             "duplicate");
  forward.loss_of(y);
  EXPECT_EQ(message_of<InternalError>([&] { differentiate(forward.graph()); }),
            "op copy at duplicate has no backward");
}

TEST(OpWithoutBackward, IsLeftAloneIfItDoesNotLeadToTheLoss) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  const ValueId y = forward.activation("y", {kRows, 6});
  forward.builder().add_node("copy", {}, std::array{Operand{x}, Operand{y, Access::kWrite}},
                             "duplicate");
  forward.loss_of(x);
  EXPECT_EQ(forward.differentiated().backward.size(), 3u);
}

TEST(Gradient, OfAnInputOrOutputIsAnActivation) {
  Forward forward;
  const ValueId x = forward.input("x", {kRows, 6});
  const ValueId logits = forward.value(ValueKind::kOutput, "logits", {kRows, kVocabulary});
  linear_into(
      forward.builder(),
      {.x = gelu(forward.builder(), x, "gelu"), .weight = forward.param("head", {kVocabulary, 6})},
      logits, "logits");
  forward.loss_of_logits(logits);
  const StageGraph& graph = forward.differentiated();
  for (const char* name : {"x.grad", "logits.grad"}) {
    const auto found = std::find_if(graph.values.begin(), graph.values.end(),
                                    [&](const Value& value) { return value.name == name; });
    ASSERT_NE(found, graph.values.end()) << name;
    EXPECT_EQ(found->kind, ValueKind::kActivation) << name;
  }
}

TEST(Gradient, OfAParameterIsNeverLost) {
  Forward forward;
  const ValueId w = forward.param("w", {kRows, 6});
  forward.loss_of(add(forward.builder(), forward.activation("x", {kRows, 6}), w, "sum"));
  EXPECT_EQ(message_of<InternalError>([&] { differentiate(forward.graph()); }),
            "op add at sum gives no main grad to its parameter w");
}

TEST(MainGrad, IsOfParametersOnly) {
  Forward forward;
  const ValueId x = forward.activation("x", {kRows, 6});
  BackwardBuilder builder(forward.graph());
  EXPECT_EQ(message_of<InternalError>([&] { builder.main_grad(x); }), "x is not a parameter");
}

// x -> frozen product -> norm -> trained product -> frozen product: no wgrad of frozen weights, the
// norm's is overwritten, and nothing is computed in front of the trained product.
TEST(FrozenWeights, HaveNoGradientTasks) {
  Forward forward;
  GraphBuilder& b = forward.builder();
  const auto frozen = [&](const char* name, Shape shape) {
    return b.named_value({.name = name,
                          .dtype = DType::kBF16,
                          .shape = shape,
                          .kind = ValueKind::kParam,
                          .frozen = true});
  };
  ValueId y =
      linear(b, forward.input("x", {kRows, 6}), frozen("w0", {6, 6}), std::nullopt, "first");
  y = linear(b, y, forward.param("w1", {6, 6}), std::nullopt, "second");
  y = rmsnorm(b, y, frozen("n", {6}), 1e-5, "norm");
  y = linear(b, y, frozen("head", {kVocabulary, 6}), std::nullopt, "logits");
  forward.loss_of_logits(y);
  EXPECT_THAT(backward_of(forward.differentiated()),
              ElementsAre(kLossBackward, "linear_dgrad(logits.grad, head -> norm.grad)",
                          "rmsnorm_backward(second, n, norm.rstd, norm.grad -> second.grad, "
                          "n.unread_grad)",
                          "linear_wgrad(first, second.grad -> +w1.main_grad)"));
}

}  // namespace
}  // namespace braid
