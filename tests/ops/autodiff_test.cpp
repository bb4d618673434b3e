#include "ops/autodiff.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/expect_error.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/op.h"
#include "ops/operand_checker.h"
#include "ops/rope.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRows = 8;
constexpr int64_t kSequence = 4;
constexpr int64_t kVocabulary = 20;

/// A forward graph under construction, ended by a projection and the loss. Values in `inputs` stay
/// what they are; everything is of one dtype.
class Forward {
 public:
  explicit Forward(DType dtype = DType::kBF16) : dtype_(dtype) {}

  StageGraph& graph() { return graph_; }
  GraphBuilder& builder() { return builder_; }

  ValueId value(ValueKind kind, std::string name, Shape shape) {
    return builder_.named_value(
        {.name = std::move(name), .dtype = dtype_, .shape = shape, .kind = kind});
  }
  ValueId param(std::string name, Shape shape) {
    return value(ValueKind::kParam, std::move(name), shape);
  }
  ValueId activation(std::string name, Shape shape) {
    return value(ValueKind::kActivation, std::move(name), shape);
  }
  ValueId input(std::string name, Shape shape) {
    return value(ValueKind::kInput, std::move(name), shape);
  }
  ValueId tokens(std::string name) {
    return builder_.named_value({.name = std::move(name),
                                 .dtype = DType::kI32,
                                 .shape = {kRows},
                                 .kind = ValueKind::kInput});
  }

  void loss_of_logits(ValueId logits) {
    const DType wide = accumulator_dtype(dtype_);
    const ValueId scale = builder_.named_value(
        {.name = "loss_scale", .dtype = wide, .shape = {1}, .kind = ValueKind::kInput});
    const ValueId loss = builder_.named_value(
        {.name = "loss", .dtype = wide, .shape = {1}, .kind = ValueKind::kOutput});
    cross_entropy(builder_, logits, tokens("labels"), scale, loss, kVocabulary, "loss");
  }

  /// logits = x w^T and their loss; returns the logits.
  ValueId loss_of(ValueId x) {
    const ValueId head = param("head", {kVocabulary, graph_.value(x).shape[1]});
    const ValueId logits = linear(builder_, x, head, std::nullopt, "logits");
    loss_of_logits(logits);
    return logits;
  }

  const StageGraph& differentiated() {
    differentiate(graph_);
    return graph_;
  }

 private:
  DType dtype_;
  StageGraph graph_;
  GraphBuilder builder_{graph_};
};

/// "op(name, name -> name)": what is read before the arrow, what is written behind it, and "+" in
/// front of what is added to.
std::string describe(const StageGraph& graph, const Node& node) {
  std::string reads_text;
  std::string writes_text;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const Value& value = graph.value(node.operands[i]);
    const Access access = node.spec.operands[i].access;
    std::string& text = writes(access) ? writes_text : reads_text;
    text += text.empty() ? "" : ", ";
    text += access == Access::kReadWrite ? "+" : "";
    text += value.name;
    text += value.kind == ValueKind::kMainGrad ? ".main_grad" : "";
  }
  return fmt::format("{}({} -> {})", node.spec.op, reads_text, writes_text);
}

std::vector<std::string> backward_of(const StageGraph& graph) {
  std::vector<std::string> list;
  for (const Node& node : graph.backward) {
    list.push_back(describe(graph, node));
  }
  return list;
}

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
  linear_into(forward.builder(), gelu(forward.builder(), x, "gelu"),
              forward.param("head", {kVocabulary, 6}), std::nullopt, logits, "logits");
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

/// A graph with every op that models are made of: both families' blocks behind one another.
void build_every_op(Forward& forward) {
  GraphBuilder& b = forward.builder();
  const auto norm_weight = [&](const char* name) { return forward.param(name, {12}); };
  ValueId x = embedding(b, forward.tokens("tokens"), forward.param("table", {kVocabulary, 12}),
                        forward.param("positions", {kSequence, 12}), kSequence, "embedding");
  ValueId y = rmsnorm(b, x, norm_weight("n1"), 1e-5, "norm1");
  y = linear(b, y, forward.param("qkv", {24, 12}), forward.param("qkv_bias", {24}), "qkv");
  const RopeAttributes heads{
      .heads = 2, .kv_heads = 2, .head_size = 4, .sequence = kSequence, .theta = 1e4};
  y = rope(b, y, heads, "rope");
  y = attention(
      b, y, {.heads = 2, .kv_heads = 2, .head_size = 4, .sequence = kSequence, .scale = 0}, "core");
  y = linear(b, y, forward.param("proj", {12, 8}), std::nullopt, "proj");
  AddNormResult sum = add_rmsnorm(b, y, x, norm_weight("n2"), 1e-5, "norm2");
  y = swiglu(b, linear(b, sum.normed, forward.param("fc1", {16, 12}), std::nullopt, "fc1"),
             "swiglu");
  y = linear(b, y, forward.param("fc2", {12, 8}), std::nullopt, "fc2");
  sum = add_layernorm(b, y, sum.sum, norm_weight("n3"), norm_weight("b3"), 1e-5, "norm3");
  y = gelu(b, sum.normed, "gelu");
  y = add(b, y, sum.sum, "add");
  y = layernorm(b, y, norm_weight("n4"), norm_weight("b4"), 1e-5, "norm4");
  forward.loss_of(y);
}

TEST(EveryBackward, EmitsNodesThatTheirOpsAccept) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    Forward forward(dtype);
    build_every_op(forward);
    const StageGraph& graph = forward.differentiated();
    std::set<std::string> used;
    for (const Node& node : graph.forward) {
      used.insert(node.spec.op);
    }
    for (const OpDefinition* op : all_ops()) {
      EXPECT_EQ(op->backward != nullptr, used.contains(std::string(op->name)))
          << op->name << ": add it to build_every_op if it has a backward";
    }
    for (const Node& node : graph.backward) {
      EXPECT_NO_THROW(check_spec(node.spec));
      ASSERT_EQ(node.operands.size(), node.spec.operands.size());
      for (size_t i = 0; i < node.operands.size(); ++i) {
        EXPECT_EQ(node.spec.operands[i].shape, graph.value(node.operands[i]).shape);
        EXPECT_EQ(node.spec.operands[i].dtype, graph.value(node.operands[i]).dtype);
      }
    }
  }
}

// Program order is the meaning: what a backward node reads must have been written before.
TEST(EveryBackward, ReadsOnlyWhatIsThere) {
  Forward forward;
  build_every_op(forward);
  const StageGraph& graph = forward.differentiated();
  std::set<ValueId> written;
  const auto run = [&](const Node& node) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Value& value = graph.value(node.operands[i]);
      if (value.kind == ValueKind::kActivation && reads(node.spec.operands[i].access)) {
        EXPECT_TRUE(written.contains(node.operands[i])) << describe(graph, node);
      }
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (writes(node.spec.operands[i].access)) {
        const bool is_first = written.insert(node.operands[i]).second;
        EXPECT_TRUE(is_first || graph.value(node.operands[i]).kind == ValueKind::kMainGrad)
            << describe(graph, node);
      }
    }
  };
  std::for_each(graph.forward.begin(), graph.forward.end(), run);
  std::for_each(graph.backward.begin(), graph.backward.end(), run);
}

TEST(EveryBackward, GivesEachParameterOneMainGrad) {
  Forward forward;
  build_every_op(forward);
  std::multiset<std::string> params;
  std::multiset<std::string> main_grads;
  for (const Value& value : forward.differentiated().values) {
    if (value.kind == ValueKind::kParam) {
      params.insert(value.name);
    } else if (value.kind == ValueKind::kMainGrad) {
      main_grads.insert(value.name);
    }
  }
  EXPECT_EQ(params, main_grads);
}

}  // namespace
}  // namespace braid
