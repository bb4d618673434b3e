#include "ops/router.h"

#include "ops/forward_graph.h"
#include "ops/integer_values.h"
#include "ops/specs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kExperts = 6;

OpSpec route_spec(const RouterRule& rule, bool has_bias = false) {
  OpSpec spec{"route",
              to_attributes(RouteAttributes{.rule = rule, .has_bias = has_bias}),
              {read(DType::kF32, {3, kExperts})}};
  if (has_bias) {
    spec.operands.push_back(read(DType::kF32, {kExperts}));
  }
  spec.operands.push_back(write(DType::kF32, {3, rule.per_token}));
  spec.operands.push_back(write(DType::kI32, {3, rule.per_token}));
  return spec;
}

OpSpec losses_spec(const RouterLossAttributes& attributes) {
  return {"router_losses",
          to_attributes(attributes),
          {read(DType::kF32, {3, kExperts}), read(DType::kF32, {kExperts}), read(DType::kF32, {1}),
           write(DType::kF32, {2})}};
}

TEST(RouteCheck, NamesWhatARuleMayNotBe) {
  EXPECT_NO_THROW(check_spec(route_spec({.per_token = 6})));
  EXPECT_NO_THROW(check_spec(route_spec({.per_token = 4, .groups = 3, .kept_groups = 2})));
  expect_refused(route_spec({.per_token = 7}), "per_token must lie in [1, experts of the kept");
  expect_refused(route_spec({.per_token = 0}), "per_token must lie in [1, experts of the kept");
  expect_refused(route_spec({.per_token = 5, .groups = 3, .kept_groups = 2}),
                 "per_token must lie in [1, experts of the kept groups]");
  expect_refused(route_spec({.per_token = 1, .groups = 4}), "groups must divide");
  expect_refused(route_spec({.per_token = 1, .groups = 0}), "groups must divide");
  expect_refused(route_spec({.per_token = 1, .groups = 2, .kept_groups = 3}), "kept_groups must");
  expect_refused(route_spec({.per_token = 1, .groups = 2, .kept_groups = 0}), "kept_groups must");
  expect_refused(route_spec({.per_token = 1, .scale = 0}), "scale must be positive");
}

TEST(RouteCheck, LogitsAreAccumulators) {
  expect_refused(with_operand(route_spec({}), 0, read(DType::kBF16, {3, kExperts})),
                 "logits must be f32 or f64");
  const OpSpec linear{"router_linear",
                      {},
                      {read(DType::kBF16, {3, 8}), read(DType::kBF16, {kExperts, 8}),
                       write(DType::kF32, {3, kExperts})}};
  EXPECT_NO_THROW(check_spec(linear));
  expect_refused(with_operand(linear, 2, write(DType::kBF16, {3, kExperts})),
                 "operand logits is bf16 [3,6], expected f32 [3,6]");
}

TEST(RouterLinearCheck, BiasesOfLogitsAreAccumulators) {
  const OpSpec linear{"router_linear",
                      to_attributes(RouterLinearAttributes{.bias = {.has_logit_bias = true}}),
                      {read(DType::kBF16, {3, 8}), read(DType::kBF16, {kExperts, 8}),
                       read(DType::kF32, {kExperts}), write(DType::kF32, {3, kExperts})}};
  EXPECT_NO_THROW(check_spec(linear));
  expect_refused(with_operand(linear, 2, read(DType::kBF16, {kExperts})),
                 "operand logit_bias is bf16 [6], expected f32 [6]");
  const OpSpec wgrad{
      "router_linear_wgrad",
      to_attributes(RouterWgradAttributes{.accumulate = true, .bias = {.has_logit_bias = true}}),
      {read(DType::kBF16, {3, 8}), read(DType::kF32, {3, kExperts}),
       read_write(DType::kF32, {kExperts, 8}), read_write(DType::kF32, {kExperts})}};
  EXPECT_NO_THROW(check_spec(wgrad));
  expect_refused(with_operand(wgrad, 3, read_write(DType::kF32, {kExperts - 1})),
                 "operand d_logit_bias is f32 [5], expected f32 [6]");
}

// Programs without such biases are what they were.
TEST(RouterLinear, HasNoAttributeWithoutABias) {
  EXPECT_TRUE(to_attributes(RouterLinearAttributes{}).empty());
  EXPECT_EQ(to_attributes(RouterWgradAttributes{.accumulate = true}),
            to_attributes(RouterGradAttributes{.accumulate = true}));
}

TEST(RouterLinearSplit, PiecesHaveTheWholeWeightAndBias) {
  const SplitTraits& split = find_op("router_linear").split;
  const OpSpec plain{
      "router_linear",
      {},
      {read(DType::kF32, {3, 8}), read(DType::kF32, {6, 8}), write(DType::kF32, {3, 6})}};
  EXPECT_TRUE(split.is_whole(plain, 1));
  EXPECT_FALSE(split.is_whole(plain, 2));
  OpSpec biased = plain;
  biased.attributes = to_attributes(RouterLinearAttributes{.bias = {.has_logit_bias = true}});
  biased.operands.insert(biased.operands.begin() + 2, read(DType::kF32, {6}));
  EXPECT_FALSE(split.is_whole(biased, 0));
  EXPECT_TRUE(split.is_whole(biased, 1));
  EXPECT_TRUE(split.is_whole(biased, 2));
  EXPECT_FALSE(split.is_whole(biased, 3));
}

TEST(RouterLossesCheck, RowsAreOfSequencesWithCounts) {
  const auto losses = [](const SequenceRows& rows, const Shape& counts) {
    return with_operand(losses_spec({.balance = 1, .rows = rows}), 1, read(DType::kF32, counts));
  };
  EXPECT_NO_THROW(check_spec(losses({.sequence = 2, .first = 1}, {2, kExperts})));
  expect_refused(losses({.sequence = 2, .first = 2}, {2, kExperts}),
                 "rows must be of the sequences of counts");
  expect_refused(losses({.sequence = 0, .first = 1}, {2, kExperts}), "sequence must be positive");
  expect_refused(losses({.sequence = 2, .first = -1}, {2, kExperts}), "first not negative");
  expect_refused(losses({.sequence = 3}, {1, kExperts - 1}), "counts must be f32 [S,E]");
  const auto count = [](const SequenceRows& rows) {
    return OpSpec{"count_by_sequence",
                  to_attributes(rows),
                  {read(DType::kI32, {3, 2}), write(DType::kF32, {2, kExperts})}};
  };
  EXPECT_NO_THROW(check_spec(count({.sequence = 2})));
  expect_refused(count({.sequence = 1}), "rows must be of the sequences of counts");
  expect_refused(count({}), "sequence must be positive");
  EXPECT_THAT(valid_integers(count({.sequence = 2}), 0),
              ::testing::Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(kExperts))));
}

TEST(RouterLossesCheck, CoefficientsAreNotNegative) {
  EXPECT_NO_THROW(check_spec(losses_spec({})));
  expect_refused(losses_spec({.balance = -1}), "balance and z must not be negative");
  expect_refused(losses_spec({.z = -1}), "balance and z must not be negative");
}

// Products that passes rewrite, to FP8 or over tensor ranks, are found by their role.
TEST(RouterLinear, IsNoProductThatPassesRewrite) {
  for (const char* const name : {"router_linear", "router_linear_dgrad", "router_linear_wgrad"}) {
    EXPECT_EQ(product_part({.op = name}), std::nullopt) << name;
    EXPECT_FALSE(is_product_or_attention({.op = name})) << name;
  }
}

TEST(RouterCost, OfProductsIsThatOfTheirSizes) {
  expect_cost(
      {"router_linear",
       {},
       {read(DType::kBF16, {3, 8}), read(DType::kBF16, {6, 8}), write(DType::kF32, {3, 6})}},
      {.flops = 2 * 3 * 6 * 8, .bytes_read = 2 * (24 + 48), .bytes_written = 4 * 18});
  expect_cost(
      {"router_linear_dgrad",
       to_attributes(RouterGradAttributes{}),
       {read(DType::kF32, {3, 6}), read(DType::kBF16, {6, 8}), write(DType::kBF16, {3, 8})}},
      {.flops = 2 * 3 * 6 * 8, .bytes_read = 4 * 18 + 2 * 48, .bytes_written = 2 * 24});
  expect_cost(
      {"router_linear_wgrad",
       to_attributes(RouterGradAttributes{.accumulate = true}),
       {read(DType::kBF16, {3, 8}), read(DType::kF32, {3, 6}), read_write(DType::kF32, {6, 8})}},
      {.flops = 2 * 3 * 6 * 8, .bytes_read = 2 * 24 + 4 * 18 + 4 * 48, .bytes_written = 4 * 48});
}

TEST(RouterCost, OfABiasIsThatOfItsBytes) {
  expect_cost(
      {"router_linear",
       to_attributes(RouterLinearAttributes{.bias = {.has_logit_bias = true}}),
       {read(DType::kBF16, {3, 8}), read(DType::kBF16, {6, 8}), read(DType::kF32, {6}),
        write(DType::kF32, {3, 6})}},
      {.flops = 2 * 3 * 6 * 8, .bytes_read = 2 * (24 + 48) + 4 * 6, .bytes_written = 4 * 18});
  expect_cost(
      {"router_linear_wgrad",
       to_attributes(RouterWgradAttributes{.accumulate = true, .bias = {.has_logit_bias = true}}),
       {read(DType::kBF16, {3, 8}), read(DType::kF32, {3, 6}), read_write(DType::kF32, {6, 8}),
        read_write(DType::kF32, {6})}},
      {.flops = 2 * 3 * 6 * 8,
       .bytes_read = 2 * 24 + 4 * 18 + 4 * 48 + 4 * 6,
       .bytes_written = 4 * 48 + 4 * 6});
}

TEST(RouterCost, OfLossesThatAnotherRankAddsIsThatOfWritingZeros) {
  expect_cost(losses_spec({.balance = 1}),
              {.flops = 8 * 18, .bytes_read = 4 * (18 + 6 + 1), .bytes_written = 4 * 2});
  expect_cost(losses_spec({.balance = 1, .adds = false}), {.bytes_written = 4 * 2});
}

TEST(RouteSplit, PiecesHaveTheWholeBias) {
  const SplitTraits& split = find_op("route").split;
  EXPECT_TRUE(split.is_whole(route_spec({}, true), 1));
  EXPECT_FALSE(split.is_whole(route_spec({}, true), 2));
  EXPECT_FALSE(split.is_whole(route_spec({}, false), 1));
}

TEST(RouteCheck, AGivenChoiceIsAnotherOperand) {
  OpSpec spec{"route",
              to_attributes(RouteAttributes{.rule = {.per_token = 2}, .source = {.given = true}}),
              {read(DType::kF32, {3, kExperts}), read(DType::kI32, {3, 2}),
               write(DType::kF32, {3, 2}), write(DType::kI32, {3, 2})}};
  EXPECT_NO_THROW(check_spec(spec));
  EXPECT_EQ(integer_need(spec, 1).limit, kExperts);
  expect_refused(with_operand(spec, 1, read(DType::kI32, {3, 1})), "operand given is i32 [3,1]");
  spec.attributes = to_attributes(RouteAttributes{
      .rule = {.per_token = 2}, .choice = {.forced = true}, .source = {.given = true}});
  expect_refused(spec, "a given choice cannot be forced");
}

TEST(RouteSplit, AForcedChoiceIsNotCut) {
  OpSpec spec = route_spec({});
  EXPECT_EQ(find_op("route").split.unit(spec), 1);
  spec.attributes = to_attributes(RouteAttributes{.choice = {.forced = true}});
  EXPECT_EQ(find_op("route").split.unit(spec), 0);
  spec.attributes = to_attributes(RouteAttributes{.choice = {.forced = true, .first = -1}});
  expect_refused(spec, "first must not be negative");
}

// Kernels write where the experts say, also if they are timed on made-up numbers.
TEST(RouteBackward, NeedsExpertsThatThereAre) {
  const OpSpec spec{
      "route_backward",
      to_attributes(RouterRule{.per_token = 2}),
      {read(DType::kF32, {50, kExperts}), read(DType::kF32, {50, 2}), read(DType::kI32, {50, 2}),
       read(DType::kF32, {50, 2}), write(DType::kF32, {50, kExperts})}};
  check_spec(spec);
  EXPECT_THAT(valid_integers(spec, 2),
              ::testing::Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(kExperts))));
}

/// A router of x [8,4] whose weights are logits of a loss.
class RouterGraph {
 public:
  explicit RouterGraph(DType dtype = DType::kBF16, bool has_logit_bias = false) : forward_(dtype) {
    GraphBuilder& b = forward_.builder();
    x_ = b.named_value(
        {.name = "x", .dtype = dtype, .shape = {8, 4}, .kind = ValueKind::kActivation});
    RouterLinearOperands operands{.x = x_, .weight = forward_.param("w", {kExperts, 4})};
    if (has_logit_bias) {
      operands.logit_bias = forward_.param("b", {kExperts});
    }
    logits_ = router_linear(b, operands, "logits");
  }

  void add_losses() {
    router_losses(forward_.builder(),
                  {.logits = logits_,
                   .counts = wide("counts", kExperts, ValueKind::kInput),
                   .loss_scale = wide("loss_scale", 1, ValueKind::kInput)},
                  {.balance = 0.01}, "losses");
  }
  void add_route(bool has_bias, RoutingUse use = RoutingUse::kScores) {
    GraphBuilder& b = forward_.builder();
    const auto bias =
        has_bias ? std::optional(wide("bias", kExperts, ValueKind::kInput)) : std::nullopt;
    const RouteResult result =
        route(b, logits_, bias, {.rule = {.per_token = 2}, .use = use}, "route");
    cross_entropy(b,
                  {.logits = result.weights,
                   .labels = forward_.tokens("labels"),
                   .loss_scale = wide("loss_scale", 1, ValueKind::kInput),
                   .loss = wide("loss", 1, ValueKind::kOutput)},
                  {.vocabulary = 2}, "loss");
  }
  std::vector<std::string> backward() { return backward_of(forward_.differentiated()); }

 private:
  ValueId wide(const char* name, int64_t size, ValueKind kind) {
    return forward_.builder().named_value(
        {.name = name, .dtype = DType::kF32, .shape = {size}, .kind = kind});
  }

  Forward forward_;
  ValueId x_;
  ValueId logits_;
};

TEST(RouterBackward, AddsTheGradientOfTheLossesToThatOfTheWeights) {
  RouterGraph graph;
  graph.add_route(true);
  graph.add_losses();
  EXPECT_THAT(
      graph.backward(),
      ElementsAre("router_losses_backward(logits, counts, loss_scale -> logits.grad)",
                  "cross_entropy_backward(route.weights, labels, loss_scale, loss.lse -> "
                  "route.weights.grad)",
                  "route_backward(logits, route.weights, route.experts, route.weights.grad -> "
                  "logits.grad_addend)",
                  "add(logits.grad, logits.grad_addend -> logits.grad_sum)",
                  "router_linear_dgrad(logits.grad_sum, w -> x.grad)",
                  "router_linear_wgrad(x, logits.grad_sum -> +w.main_grad)"));
}

// The sum of all gradients of the logits; the cast of a bf16 bias has no backward of its own.
TEST(RouterBackward, OfABiasIsPartOfThatOfTheWeight) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    RouterGraph graph(dtype, true);
    graph.add_route(true);
    graph.add_losses();
    EXPECT_EQ(graph.backward().back(),
              "router_linear_wgrad(x, logits.grad_sum -> +w.main_grad, +b.main_grad)");
  }
}

// What the host gives or reads is a value of its own; the backward is that of the choice.
TEST(RouterBackward, IsThatOfTheChoiceWhoeverMadeIt) {
  for (const bool has_bias : {false, true}) {
    RouterGraph given;
    given.add_route(has_bias, RoutingUse::kGiven);
    EXPECT_EQ(given.backward()[1],
              "route_backward(logits, route.weights, route.experts, route.weights.grad -> "
              "logits.grad)");
    RouterGraph recorded;
    recorded.add_route(has_bias, RoutingUse::kRecorded);
    EXPECT_EQ(recorded.backward()[1],
              "route_backward(logits, route.weights, route.routing, route.weights.grad -> "
              "logits.grad)");
  }
}

// The losses alone start a backward; without a bias the operands of route are fewer.
TEST(RouterBackward, NeedsNoOtherLossAndNoBias) {
  RouterGraph losses_only;
  losses_only.add_losses();
  EXPECT_THAT(losses_only.backward(),
              ElementsAre("router_losses_backward(logits, counts, loss_scale -> logits.grad)",
                          "router_linear_dgrad(logits.grad, w -> x.grad)",
                          "router_linear_wgrad(x, logits.grad -> +w.main_grad)"));
  RouterGraph without_bias;
  without_bias.add_route(false);
  EXPECT_EQ(without_bias.backward()[1],
            "route_backward(logits, route.weights, route.experts, route.weights.grad -> "
            "logits.grad)");
}

}  // namespace
}  // namespace braid
