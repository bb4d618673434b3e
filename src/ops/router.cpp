#include "ops/router.h"

#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/integer_values.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// The next operand is a matrix of accumulators, whatever the type of activations.
const OperandSpec& next_accumulators(OperandChecker& operands, std::string_view name) {
  const OperandSpec& matrix = operands.next_floating(name, Access::kRead, 2);
  operands.require(matrix.dtype == accumulator_dtype(matrix.dtype),
                   fmt::format("{} must be f32 or f64", name));
  return matrix;
}

void check_router_linear(const OpSpec& spec) {
  const auto attributes = attributes_of<RouterLinearAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == x.dtype && w.shape[1] == x.shape[1],
                   "w must be [E,C] of x's dtype and C");
  if (attributes.bias.has_logit_bias) {
    operands.expect("logit_bias", Access::kRead, accumulator_dtype(x.dtype), {w.shape[0]});
  }
  operands.expect("logits", Access::kWrite, accumulator_dtype(x.dtype), {x.shape[0], w.shape[0]});
  operands.done();
}

void check_router_linear_dgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<RouterGradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& d_logits = next_accumulators(operands, "d_logits");
  const OperandSpec& w = operands.next_floating("w", Access::kRead, 2);
  operands.require(accumulator_dtype(w.dtype) == d_logits.dtype && w.shape[0] == d_logits.shape[1],
                   "w must be [E,C] of the E of d_logits, which must be its accumulators");
  operands.expect("dx", accumulate_access(attributes.accumulate), w.dtype,
                  {d_logits.shape[0], w.shape[1]});
  operands.done();
}

void check_router_linear_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<RouterWgradAttributes>(spec);
  const Access access = accumulate_access(attributes.accumulate);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& d_logits = operands.next("d_logits", Access::kRead, 2);
  operands.require(d_logits.dtype == accumulator_dtype(x.dtype) && d_logits.shape[0] == x.shape[0],
                   "d_logits must be accumulators of x, with its rows");
  operands.expect("dw", access, d_logits.dtype, {d_logits.shape[1], x.shape[1]});
  if (attributes.bias.has_logit_bias) {
    operands.expect("d_logit_bias", access, d_logits.dtype, {d_logits.shape[1]});
  }
  operands.done();
}

void check_rule(const OperandChecker& operands, const RouterRule& rule, int64_t experts) {
  operands.require(rule.groups > 0 && experts % rule.groups == 0,
                   "groups must divide the number of experts");
  operands.require(rule.kept_groups > 0 && rule.kept_groups <= rule.groups,
                   "kept_groups must lie in [1, groups]");
  operands.require(rule.per_token > 0 && rule.per_token <= experts / rule.groups * rule.kept_groups,
                   "per_token must lie in [1, experts of the kept groups]");
  operands.require(rule.scale > 0, "scale must be positive");
}

void check_route(const OpSpec& spec) {
  const auto attributes = attributes_of<RouteAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& logits = next_accumulators(operands, "logits");
  check_rule(operands, attributes.rule, logits.shape[1]);
  operands.require(attributes.choice.first >= 0, "first must not be negative");
  if (attributes.has_bias) {
    operands.expect("bias", Access::kRead, logits.dtype, {logits.shape[1]});
  }
  const Shape choice{logits.shape[0], attributes.rule.per_token};
  if (attributes.source.given) {
    operands.require(!attributes.choice.forced, "a given choice cannot be forced, too");
    operands.expect("given", Access::kRead, DType::kI32, choice);
  }
  operands.expect("weights", Access::kWrite, logits.dtype, choice);
  operands.expect("experts", Access::kWrite, DType::kI32, choice);
  operands.done();
}

void check_route_backward(const OpSpec& spec) {
  const auto rule = attributes_of<RouterRule>(spec);
  OperandChecker operands(spec);
  const OperandSpec& logits = next_accumulators(operands, "logits");
  check_rule(operands, rule, logits.shape[1]);
  const Shape choice{logits.shape[0], rule.per_token};
  operands.expect("weights", Access::kRead, logits.dtype, choice);
  operands.expect("experts", Access::kRead, DType::kI32, choice);
  operands.expect("d_weights", Access::kRead, logits.dtype, choice);
  operands.expect("d_logits", Access::kWrite, logits.dtype, logits.shape);
  operands.done();
}

void check_count_choices(const OpSpec& spec) {
  const auto attributes = attributes_of<RouterGradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& experts = operands.next("experts", Access::kRead, 2);
  operands.require(experts.dtype == DType::kI32, "experts must be i32");
  const OperandSpec& d_bias =
      operands.next_floating("d_bias", accumulate_access(attributes.accumulate), 1);
  operands.require(d_bias.dtype == accumulator_dtype(d_bias.dtype), "d_bias must be f32 or f64");
  operands.done();
}

/// Rows are of sequences that there are.
void require_rows(const OperandChecker& operands, const SequenceRows& rows, int64_t num_rows,
                  int64_t sequences) {
  operands.require(rows.sequence > 0 && rows.first >= 0,
                   "sequence must be positive and first not negative");
  operands.require(num_rows == 0 || rows.of(num_rows - 1) < sequences,
                   "rows must be of the sequences of counts");
}

void check_count_by_sequence(const OpSpec& spec) {
  const auto rows = attributes_of<SequenceRows>(spec);
  OperandChecker operands(spec);
  const OperandSpec& experts = operands.next("experts", Access::kRead, 2);
  operands.require(experts.dtype == DType::kI32, "experts must be i32");
  const OperandSpec& counts = operands.next("counts", Access::kWrite, 2);
  operands.require(counts.dtype == DType::kF32, "counts must be f32");
  require_rows(operands, rows, experts.shape[0], counts.shape[0]);
  operands.done();
}

/// The operands that both ops of losses read; returns the logits.
const OperandSpec& check_loss_inputs(OperandChecker& operands, const OpSpec& spec) {
  const auto attributes = attributes_of<RouterLossAttributes>(spec);
  const OperandSpec& logits = next_accumulators(operands, "logits");
  operands.require(attributes.balance >= 0 && attributes.z >= 0,
                   "balance and z must not be negative");
  if (attributes.rows == SequenceRows()) {
    operands.expect("counts", Access::kRead, DType::kF32, {logits.shape[1]});
  } else {
    const OperandSpec& counts = operands.next("counts", Access::kRead, 2);
    operands.require(counts.dtype == DType::kF32 && counts.shape[1] == logits.shape[1],
                     "counts must be f32 [S,E] of the E of logits");
    require_rows(operands, attributes.rows, logits.shape[0], counts.shape[0]);
  }
  operands.expect("loss_scale", Access::kRead, logits.dtype, {1});
  return logits;
}

void check_router_losses(const OpSpec& spec) {
  OperandChecker operands(spec);
  const OperandSpec& logits = check_loss_inputs(operands, spec);
  operands.expect("losses", Access::kWrite, logits.dtype, {2});
  operands.done();
}

void check_router_losses_backward(const OpSpec& spec) {
  OperandChecker operands(spec);
  const OperandSpec& logits = check_loss_inputs(operands, spec);
  operands.expect("d_logits", Access::kWrite, logits.dtype, logits.shape);
  operands.done();
}

GemmShape linear_shape(const OpSpec& spec) {
  const Shape& x = spec.operands.at(0).shape;
  const OperandSpec& w = spec.operands.at(1);
  return {.rows = x[0], .columns = w.shape[0], .depth = x[1], .dtype = w.dtype};
}

GemmShape dgrad_shape(const OpSpec& spec) {
  const Shape& d_logits = spec.operands.at(0).shape;
  const OperandSpec& w = spec.operands.at(1);
  return {.rows = d_logits[0], .columns = w.shape[1], .depth = d_logits[1], .dtype = w.dtype};
}

GemmShape wgrad_shape(const OpSpec& spec) {
  const OperandSpec& x = spec.operands.at(0);
  const Shape& d_logits = spec.operands.at(1).shape;
  return {.rows = d_logits[1], .columns = x.shape[1], .depth = x.shape[0], .dtype = x.dtype};
}

template <GemmShape (*kShape)(const OpSpec&)>
OpCost product_cost(const OpSpec& spec) {
  const GemmShape shape = kShape(spec);
  OpCost cost = operand_bytes(spec);
  cost.flops = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
               static_cast<double>(shape.depth);
  return cost;
}

/// Without `adds` there is nothing to compute, only zeros to write.
OpCost losses_cost(const OpSpec& spec) {
  OpCost cost = elementwise_cost<8>(spec);
  if (!attributes_of<RouterLossAttributes>(spec).adds) {
    cost.flops = 0;
    cost.bytes_read = 0;
  }
  return cost;
}

/// The parameter behind a bias that may have been widened, if it is one.
std::optional<ValueId> bias_parameter(BackwardBuilder& builder, ValueId bias) {
  if (builder.value(bias).kind == ValueKind::kActivation) {
    bias = builder.producer_of(bias).operands[0];  // of its cast
  }
  return builder.value(bias).kind == ValueKind::kParam ? std::optional(bias) : std::nullopt;
}

void router_linear_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> d_logits = builder.grad_of(node.operands.back());
  if (!d_logits) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId w = node.operands[1];
  if (builder.wants_grad(x)) {
    const ValueId dx = builder.new_grad(x);
    builder.add_node(node, "router_linear_dgrad", to_attributes(RouterGradAttributes{}),
                     std::array{Operand{*d_logits}, Operand{w}, Operand{dx, Access::kWrite}},
                     Phase::kDgrad);
    builder.add_grad(node, x, dx);
  }
  std::vector<Operand> operands{{x}, {*d_logits}, {builder.main_grad(w), Access::kReadWrite}};
  const auto attributes = attributes_of<RouterLinearAttributes>(node.spec);
  const auto bias =
      attributes.bias.has_logit_bias ? bias_parameter(builder, node.operands[2]) : std::nullopt;
  if (bias) {
    operands.push_back({builder.main_grad(*bias), Access::kReadWrite});
  }
  builder.add_node(node, "router_linear_wgrad",
                   to_attributes(RouterWgradAttributes{
                       .accumulate = true, .bias = {.has_logit_bias = bias.has_value()}}),
                   operands, Phase::kWgrad);
}

void count_choices(BackwardBuilder& builder, const Node& node, ValueId experts) {
  if (const auto bias = bias_parameter(builder, node.operands[1])) {
    builder.add_node(
        node, "count_choices", to_attributes(RouterGradAttributes{.accumulate = true}),
        std::array{Operand{experts}, Operand{builder.main_grad(*bias), Access::kReadWrite}},
        Phase::kWgrad);
  }
}

void route_backward(BackwardBuilder& builder, const Node& node) {
  const auto attributes = attributes_of<RouteAttributes>(node.spec);
  const size_t at = attributes.weights_operand();
  if (attributes.has_bias) {
    count_choices(builder, node, node.operands[at + 1]);
  }
  const std::optional<ValueId> d_weights = builder.grad_of(node.operands[at]);
  if (!d_weights) {
    return;
  }
  const ValueId logits = node.operands[0];
  const ValueId d_logits = builder.new_grad(logits);
  builder.add_node(
      node, "route_backward", to_attributes(attributes.rule),
      std::array{Operand{logits}, Operand{node.operands[at]}, Operand{node.operands[at + 1]},
                 Operand{*d_weights}, Operand{d_logits, Access::kWrite}},
      Phase::kDgrad);
  builder.add_grad(node, logits, d_logits);
}

// The gradient of the losses is 1 by definition, so this starts a backward.
void router_losses_backward(BackwardBuilder& builder, const Node& node) {
  const ValueId logits = node.operands[0];
  const ValueId d_logits = builder.new_grad(logits);
  builder.add_node(node, "router_losses_backward", node.spec.attributes,
                   std::array{Operand{logits}, Operand{node.operands[1]}, Operand{node.operands[2]},
                              Operand{d_logits, Access::kWrite}},
                   Phase::kDgrad);
  builder.add_grad(node, logits, d_logits);
}

IntegerNeed chosen_experts(const OpSpec& spec, size_t /*operand*/) {
  return {.rule = IntegerRule::kBelow, .limit = spec.operands[0].shape[1]};
}

IntegerNeed counted_by_sequence(const OpSpec& spec, size_t /*operand*/) {
  return {.rule = IntegerRule::kBelow, .limit = spec.operands[1].shape[1]};
}

IntegerNeed counted_experts(const OpSpec& spec, size_t /*operand*/) {
  return {.rule = IntegerRule::kBelow, .limit = spec.operands[1].shape[0]};
}

/// Rows of x or d_logits; every piece has the whole weight and bias. Libraries choose kernels by
/// the size.
constexpr SplitTraits kProductSplit{.dimension = SplitDimension::kRows,
                                    .keeps_bits = false,
                                    .is_whole = [](const OpSpec& spec, size_t at) {
                                      return at > 0 && at + 1 < spec.operands.size();
                                    }};

/// Rows of the logits; every piece has the whole bias. A forced choice depends on the number of the
/// row.
constexpr SplitTraits kRouteSplit{
    .dimension = SplitDimension::kRows,
    .is_whole =
        [](const OpSpec& spec, size_t operand) {
          return operand == 1 && attributes_of<RouteAttributes>(spec).has_bias;
        },
    .unit = [](const OpSpec& spec) -> int64_t {
      return attributes_of<RouteAttributes>(spec).choice.forced ? 0 : 1;
    }};

/// Rows of the logits; every piece has all counts and the scale. Which sequence a row is of depends
/// on its number.
constexpr SplitTraits kLossesSplit{
    .dimension = SplitDimension::kRows,
    .is_whole = [](const OpSpec&, size_t operand) { return operand == 1 || operand == 2; },
    .unit = [](const OpSpec& spec) -> int64_t {
      return attributes_of<RouterLossAttributes>(spec).rows == SequenceRows() ? 1 : 0;
    }};

/// The value in its accumulator type.
ValueId widened(GraphBuilder& builder, ValueId x, std::string_view site) {
  const Value input = builder.value(x);
  if (input.dtype == accumulator_dtype(input.dtype)) {
    return x;
  }
  const ValueId y = builder.add_activation(site, accumulator_dtype(input.dtype), input.shape);
  builder.add_node("cast", {}, std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace

const OpDefinition kRouterLinearOp{
    .name = "router_linear",
    .summary = "Logits of experts = x w^T (+ bias), in the accumulator type.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kRouting,
    .check = check_router_linear,
    .cost = product_cost<linear_shape>,
    .backward = router_linear_backward,
    .gemm_shape = linear_shape,
    .split = kProductSplit,
};

const OpDefinition kRouterLinearDgradOp{
    .name = "router_linear_dgrad",
    .summary = "dx = d_logits w.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kRouting,
    .check = check_router_linear_dgrad,
    .cost = product_cost<dgrad_shape>,
    .gemm_shape = dgrad_shape,
    .split = kProductSplit,
};

const OpDefinition kRouterLinearWgradOp{
    .name = "router_linear_wgrad",
    .summary = "dw += d_logits^T x into the main grad, d_logit_bias += column sums of d_logits.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kRouting,
    .check = check_router_linear_wgrad,
    .cost = product_cost<wgrad_shape>,
    .gemm_shape = wgrad_shape,
    .split = kNeverSplit,  // sums over rows
};

// The choice is never made again: the rows of all experts depend on it, and it is small.
const OpDefinition kRouteOp{
    .name = "route",
    .summary = "Chooses the experts of each token, and their weights.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kRouting,
    .check = check_route,
    .cost = elementwise_cost<8>,
    .kernel_rate = {.least_ns = 5000},
    .backward = route_backward,
    .recompute = Recompute::kNone,
    .split = kRouteSplit,
    .integers = chosen_experts,
};

const OpDefinition kRouteBackwardOp{
    .name = "route_backward",
    .summary = "Gradient of the weights of chosen experts with respect to the logits.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kRouting,
    .check = check_route_backward,
    .cost = elementwise_cost<6>,
    .kernel_rate = {.least_ns = 5000},
    .split = kSplitByRows,
    .integers = chosen_experts,
};

const OpDefinition kCountChoicesOp{
    .name = "count_choices",
    .summary = "Tokens that chose each expert, compared with the mean.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kRouting,
    .check = check_count_choices,
    .cost = elementwise_cost<1>,
    .split = kNeverSplit,  // sums over rows
    .integers = counted_experts,
};

const OpDefinition kCountBySequenceOp{
    .name = "count_by_sequence",
    .summary = "Rows of each sequence that chose each expert.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kRouting,
    .check = check_count_by_sequence,
    .cost = elementwise_cost<1>,
    .recompute = Recompute::kNone,  // as the choice that it counts
    .split = kNeverSplit,           // sums over rows
    .integers = counted_by_sequence,
};

const OpDefinition kRouterLossesOp{
    .name = "router_losses",
    .summary = "Losses that balance the load of experts and keep logits small.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kRouting,
    .check = check_router_losses,
    .cost = losses_cost,
    .kernel_rate = {.least_ns = 14000},
    .backward = router_losses_backward,
    .recompute = Recompute::kNone,  // no gradient reads them
    .split = kNeverSplit,           // sums over rows
    .added_by_one = "adds",
};

const OpDefinition kRouterLossesBackwardOp{
    .name = "router_losses_backward",
    .summary = "Gradient of the router's losses with respect to the logits.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kRouting,
    .check = check_router_losses_backward,
    .cost = losses_cost,
    .kernel_rate = {.least_ns = 14000},
    .split = kLossesSplit,
    .added_by_one = "adds",
};

ValueId router_linear(GraphBuilder& builder, const RouterLinearOperands& operands,
                      std::string_view site) {
  const Value input = builder.value(operands.x);
  const Shape shape{input.shape[0], builder.value(operands.weight).shape[0]};
  std::vector<Operand> list{{operands.x}, {operands.weight}};
  if (operands.logit_bias) {
    list.push_back({widened(builder, *operands.logit_bias, fmt::format("{}.logit_bias", site))});
  }
  const ValueId logits = builder.add_activation(site, accumulator_dtype(input.dtype), shape);
  list.push_back({logits, Access::kWrite});
  const RouterLinearAttributes attributes{
      .bias = {.has_logit_bias = operands.logit_bias.has_value()}};
  builder.add_node("router_linear", to_attributes(attributes), list, site);
  return logits;
}

RouteResult route(GraphBuilder& builder, ValueId logits, std::optional<ValueId> bias,
                  const RouteOptions& options, std::string_view site) {
  const Value input = builder.value(logits);
  const Shape pairs{input.shape[0], options.rule.per_token};
  const auto of_host = [&](ValueKind kind) {
    return builder.add_value({.name = builder.scoped(fmt::format("{}{}", site, kRoutingSuffix)),
                              .dtype = DType::kI32,
                              .shape = pairs,
                              .kind = kind});
  };
  const RouteResult result{
      .weights = builder.add_activation(fmt::format("{}.weights", site), input.dtype, pairs),
      .experts = options.use == RoutingUse::kRecorded
                     ? of_host(ValueKind::kOutput)
                     : builder.add_activation(fmt::format("{}.experts", site), DType::kI32, pairs)};
  const bool given = options.use == RoutingUse::kGiven;
  std::vector<Operand> operands{{logits}};
  if (bias) {
    operands.push_back({widened(builder, *bias, fmt::format("{}.bias", site))});
  }
  if (given) {
    operands.push_back({of_host(ValueKind::kInput)});
  }
  operands.push_back({result.weights, Access::kWrite});
  operands.push_back({result.experts, Access::kWrite});
  builder.add_node("route",
                   to_attributes(RouteAttributes{.rule = options.rule,
                                                 .has_bias = bias.has_value(),
                                                 .choice = given ? ForcedChoice{} : options.forced,
                                                 .source = {.given = given}}),
                   operands, site);
  return result;
}

ValueId count_by_sequence(GraphBuilder& builder, ValueId experts, const SequenceCountSizes& sizes,
                          const SequenceRows& rows, std::string_view site) {
  const ValueId counts =
      builder.add_activation(site, DType::kF32, {sizes.sequences, sizes.experts});
  builder.add_node("count_by_sequence", to_attributes(rows),
                   std::array{Operand{experts}, Operand{counts, Access::kWrite}}, site);
  return counts;
}

ValueId router_losses(GraphBuilder& builder, const RouterLossOperands& operands,
                      const RouterLossAttributes& attributes, std::string_view site) {
  const DType dtype = builder.value(operands.logits).dtype;
  const ValueId losses = builder.add_value(
      {.name = builder.scoped(site), .dtype = dtype, .shape = {2}, .kind = ValueKind::kOutput});
  builder.add_node("router_losses", to_attributes(attributes),
                   std::array{Operand{operands.logits}, Operand{operands.counts},
                              Operand{operands.loss_scale}, Operand{losses, Access::kWrite}},
                   site);
  return losses;
}

}  // namespace braid
