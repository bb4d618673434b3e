#include "ops/norm.h"

#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

enum class Kind { kRms, kLayer };

// Operands of the four forward ops: x, [residual], w, [b], [sum], y, [mean], rstd.
template <Kind kKind>
void check_offset(const OperandChecker& operands, const NormOffset& offset) {
  operands.require(kKind == Kind::kRms || offset == NormOffset{},
                   "a layernorm has no weight_offset");
}

template <Kind kKind, bool kAdds>
void check_forward(const OpSpec& spec) {
  const auto attributes = attributes_of<NormAttributes>(spec);
  OperandChecker operands(spec);
  check_offset<kKind>(operands, attributes.offset);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const Shape rows{x.shape[0]};
  const Shape width{x.shape[1]};
  if (kAdds) {
    operands.expect("residual", Access::kRead, x.dtype, x.shape);
  }
  operands.expect("w", Access::kRead, x.dtype, width);
  if (kKind == Kind::kLayer) {
    operands.expect("b", Access::kRead, x.dtype, width);
  }
  if (kAdds) {
    operands.expect("sum", Access::kWrite, x.dtype, x.shape);
  }
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  if (kKind == Kind::kLayer) {
    operands.expect("mean", Access::kWrite, accumulator_dtype(x.dtype), rows);
  }
  operands.expect("rstd", Access::kWrite, accumulator_dtype(x.dtype), rows);
  operands.done();
}

template <Kind kKind>
void check_backward(const OpSpec& spec) {
  const auto attributes = attributes_of<NormBackwardAttributes>(spec);
  const Access access = accumulate_access(attributes.accumulate);
  OperandChecker operands(spec);
  check_offset<kKind>(operands, attributes.offset);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const DType accumulator = accumulator_dtype(x.dtype);
  const Shape rows{x.shape[0]};
  const Shape width{x.shape[1]};
  operands.expect("w", Access::kRead, x.dtype, width);
  if (kKind == Kind::kLayer) {
    operands.expect("mean", Access::kRead, accumulator, rows);
  }
  operands.expect("rstd", Access::kRead, accumulator, rows);
  operands.expect("dy", Access::kRead, x.dtype, x.shape);
  if (attributes.has_d_sum) {
    operands.expect("d_sum", Access::kRead, x.dtype, x.shape);
  }
  operands.expect("dx", Access::kWrite, x.dtype, x.shape);
  operands.expect("dw", access, accumulator, width);
  if (kKind == Kind::kLayer) {
    operands.expect("db", access, accumulator, width);
  }
  operands.done();
}

/// Operand indices of a forward node; 0 for operands that the op lacks.
struct Positions {
  size_t residual, weight, bias, sum, y, mean, rstd;
};

template <Kind kKind, bool kAdds>
constexpr Positions positions_of() {
  if constexpr (kKind == Kind::kRms) {
    return kAdds ? Positions{1, 2, 0, 3, 4, 0, 5} : Positions{0, 1, 0, 0, 2, 0, 3};
  } else {
    return kAdds ? Positions{1, 2, 3, 4, 5, 6, 7} : Positions{0, 1, 2, 0, 3, 4, 5};
  }
}

template <Kind kKind, bool kAdds>
void backward(BackwardBuilder& builder, const Node& node) {
  constexpr Positions kAt = positions_of<kKind, kAdds>();
  const ValueId x = node.operands[0];
  const std::optional<ValueId> dy = builder.grad_of(node.operands[kAt.y]);
  const std::optional<ValueId> d_sum =
      kAdds ? builder.grad_of(node.operands[kAt.sum]) : std::nullopt;
  std::optional<ValueId> dx = d_sum;  // the whole gradient if the normed value is unused
  if (dy) {
    dx = builder.new_grad(x);
    std::vector<Operand> operands{{kAdds ? node.operands[kAt.sum] : x},
                                  {node.operands[kAt.weight]}};
    if (kKind == Kind::kLayer) {
      operands.push_back({node.operands[kAt.mean]});
    }
    operands.insert(operands.end(), {{node.operands[kAt.rstd]}, {*dy}});
    if (d_sum) {
      operands.push_back({*d_sum});
    }
    operands.push_back({*dx, Access::kWrite});
    operands.push_back({builder.main_grad(node.operands[kAt.weight]), Access::kReadWrite});
    if (kKind == Kind::kLayer) {
      operands.push_back({builder.main_grad(node.operands[kAt.bias]), Access::kReadWrite});
    }
    builder.add_node(node, kKind == Kind::kRms ? "rmsnorm_backward" : "layernorm_backward",
                     to_attributes(NormBackwardAttributes{
                         .has_d_sum = d_sum.has_value(),
                         .offset = attributes_of<NormAttributes>(node.spec).offset}),
                     operands, Phase::kDgrad);
  }
  if (!dx) {
    return;
  }
  builder.add_grad(node, x, *dx);
  if (kAdds) {
    builder.add_grad(node, node.operands[kAt.residual], *dx);
  }
}

ValueId add_like(GraphBuilder& builder, ValueId x, std::string_view site, std::string_view suffix) {
  const Value like = builder.value(x);
  return builder.add_activation(fmt::format("{}{}", site, suffix), like.dtype, like.shape);
}

ValueId add_statistic(GraphBuilder& builder, ValueId x, std::string_view site,
                      std::string_view suffix) {
  const Value like = builder.value(x);
  return builder.add_activation(fmt::format("{}{}", site, suffix), accumulator_dtype(like.dtype),
                                {like.shape[0]});
}

// The add_ forms normalize their rounded sum, so the plain norm of a kept sum gives the same bits.
constexpr std::array<size_t, 4> kRmsnormOfSum = {3, 2, 4, 5};          // sum, w -> y, rstd
constexpr std::array<size_t, 6> kLayernormOfSum = {4, 2, 3, 5, 6, 7};  // sum, w, b -> y, mean, rstd

template <Kind kKind, bool kAdds>
constexpr SourceTraits source_of() {
  constexpr Positions kAt = positions_of<kKind, kAdds>();
  return {.num_operands = kAt.rstd + 1, .result = kAt.y, .needs_rows = true};
}

/// In a backward: all operands but the weight and the last ones, the gradients of parameters.
template <Kind kKind>
bool is_by_row(const OpSpec& spec, size_t operand) {
  const size_t num_sums = kKind == Kind::kRms ? 1 : 2;
  return operand != 1 && operand + num_sums < spec.operands.size();
}

}  // namespace

const OpDefinition kRmsnormOp{
    .name = "rmsnorm",
    .summary = "Root-mean-square normalisation over the last dimension.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_forward<Kind::kRms, false>,
    .cost = elementwise_cost<4>,
    .kernel_rate = {.part = 0.90},
    .backward = backward<Kind::kRms, false>,
    .recompute = Recompute::kNorms,
    .split = rows_but_operands<1, 2>(),
    .source = source_of<Kind::kRms, false>(),
};

const OpDefinition kAddRmsnormOp{
    .name = "add_rmsnorm",
    .summary = "Residual addition, then rmsnorm of the sum.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_forward<Kind::kRms, true>,
    .cost = elementwise_cost<5>,
    .backward = backward<Kind::kRms, true>,
    .recompute = Recompute::kNorms,
    .replay = {.op = "rmsnorm", .operands = kRmsnormOfSum},
    .split = rows_but_operands<2, 3>(),
    .source = source_of<Kind::kRms, true>(),
};

const OpDefinition kRmsnormBackwardOp{
    .name = "rmsnorm_backward",
    .summary =
        "Gradients of rmsnorm with respect to input and weight, plus the gradient of the residual "
        "path.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_backward<Kind::kRms>,
    .cost = elementwise_cost<9>,
    .kernel_rate = {.part = 0.70},
    .split = kNeverSplit,  // sums over rows
    .pieces = {.is_by_row = is_by_row<Kind::kRms>},
};

const OpDefinition kLayernormOp{
    .name = "layernorm",
    .summary = "Mean and variance normalisation over the last dimension, with weight and bias.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_forward<Kind::kLayer, false>,
    .cost = elementwise_cost<7>,
    .kernel_rate = {.part = 0.90},
    .backward = backward<Kind::kLayer, false>,
    .recompute = Recompute::kNorms,
    .split = rows_but_operands<1, 3>(),
    .source = source_of<Kind::kLayer, false>(),
};

const OpDefinition kAddLayernormOp{
    .name = "add_layernorm",
    .summary = "Residual addition, then layernorm of the sum.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_forward<Kind::kLayer, true>,
    .cost = elementwise_cost<8>,
    .backward = backward<Kind::kLayer, true>,
    .recompute = Recompute::kNorms,
    .replay = {.op = "layernorm", .operands = kLayernormOfSum},
    .split = rows_but_operands<2, 4>(),
    .source = source_of<Kind::kLayer, true>(),
};

const OpDefinition kLayernormBackwardOp{
    .name = "layernorm_backward",
    .summary =
        "Gradients of layernorm with respect to input, weight and bias, plus that of the residual "
        "path.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_backward<Kind::kLayer>,
    .cost = elementwise_cost<12>,
    .kernel_rate = {.part = 0.70},
    .split = kNeverSplit,  // sums over rows
    .pieces = {.is_by_row = is_by_row<Kind::kLayer>},
};

ValueId rmsnorm(GraphBuilder& builder, ValueId x, ValueId weight, double epsilon,
                std::string_view site, NormOffset offset) {
  const ValueId y = add_like(builder, x, site, "");
  const ValueId rstd = add_statistic(builder, x, site, ".rstd");
  builder.add_node("rmsnorm", to_attributes(NormAttributes{.epsilon = epsilon, .offset = offset}),
                   std::array{Operand{x}, Operand{weight}, Operand{y, Access::kWrite},
                              Operand{rstd, Access::kWrite}},
                   site);
  return y;
}

AddNormResult add_rmsnorm(GraphBuilder& builder, ValueId x, ValueId residual, ValueId weight,
                          double epsilon, std::string_view site, NormOffset offset) {
  const ValueId sum = add_like(builder, x, site, ".sum");
  const ValueId y = add_like(builder, x, site, "");
  const ValueId rstd = add_statistic(builder, x, site, ".rstd");
  builder.add_node(
      "add_rmsnorm", to_attributes(NormAttributes{.epsilon = epsilon, .offset = offset}),
      std::array{Operand{x}, Operand{residual}, Operand{weight}, Operand{sum, Access::kWrite},
                 Operand{y, Access::kWrite}, Operand{rstd, Access::kWrite}},
      site);
  return {.sum = sum, .normed = y};
}

ValueId layernorm(GraphBuilder& builder, ValueId x, ValueId weight, ValueId bias, double epsilon,
                  std::string_view site) {
  const ValueId y = add_like(builder, x, site, "");
  const ValueId mean = add_statistic(builder, x, site, ".mean");
  const ValueId rstd = add_statistic(builder, x, site, ".rstd");
  builder.add_node(
      "layernorm", to_attributes(NormAttributes{.epsilon = epsilon}),
      std::array{Operand{x}, Operand{weight}, Operand{bias}, Operand{y, Access::kWrite},
                 Operand{mean, Access::kWrite}, Operand{rstd, Access::kWrite}},
      site);
  return y;
}

AddNormResult add_layernorm(GraphBuilder& builder, ValueId x, ValueId residual, ValueId weight,
                            ValueId bias, double epsilon, std::string_view site) {
  const ValueId sum = add_like(builder, x, site, ".sum");
  const ValueId y = add_like(builder, x, site, "");
  const ValueId mean = add_statistic(builder, x, site, ".mean");
  const ValueId rstd = add_statistic(builder, x, site, ".rstd");
  builder.add_node("add_layernorm", to_attributes(NormAttributes{.epsilon = epsilon}),
                   std::array{Operand{x}, Operand{residual}, Operand{weight}, Operand{bias},
                              Operand{sum, Access::kWrite}, Operand{y, Access::kWrite},
                              Operand{mean, Access::kWrite}, Operand{rstd, Access::kWrite}},
                   site);
  return {.sum = sum, .normed = y};
}

}  // namespace braid
