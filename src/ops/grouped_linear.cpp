#include "ops/grouped_linear.h"

#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/expert_offsets.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// w [E M,K] and the offsets of its E experts; returns M.
int64_t check_experts(OperandChecker& operands, const OperandSpec& w) {
  const int64_t num_experts = next_offsets(operands);
  operands.require(w.shape[0] % num_experts == 0, "the rows of w must be a multiple of E");
  return w.shape[0] / num_experts;
}

void check_grouped_linear(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == x.dtype && w.shape[1] == x.shape[1],
                   "w must be [E M,K] of x's dtype and K");
  const int64_t out = check_experts(operands, w);
  operands.expect("y", Access::kWrite, x.dtype, {x.shape[0], out});
  operands.done();
}

void check_grouped_linear_dgrad(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& dy = operands.next_floating("dy", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  const int64_t out = check_experts(operands, w);
  operands.require(w.dtype == dy.dtype && out == dy.shape[1],
                   "w must be [E M,K] of dy's dtype and M");
  operands.expect("dx", Access::kWrite, dy.dtype, {dy.shape[0], w.shape[1]});
  operands.done();
}

void check_grouped_linear_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<GroupedWgradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& dy = operands.next("dy", Access::kRead, 2);
  operands.require(x.dtype == dy.dtype && x.shape[0] == dy.shape[0],
                   "x and dy must agree in dtype and rows");
  const int64_t num_experts = next_offsets(operands);
  operands.expect_main_grad("dw", accumulate_access(attributes.accumulate), x.dtype,
                            {num_experts * dy.shape[1], x.shape[1]});
  operands.done();
}

int64_t num_experts(const OpSpec& spec) {
  return spec.operands[2].shape[0] - 1;
}

GemmShape linear_shape(const OpSpec& spec) {
  const Shape& x = spec.operands[0].shape;
  return {.rows = x[0],
          .columns = spec.operands[3].shape[1],
          .depth = x[1],
          .dtype = spec.operands[0].dtype,
          .groups = num_experts(spec)};
}

GemmShape wgrad_shape(const OpSpec& spec) {
  const Shape& x = spec.operands[0].shape;
  return {.rows = spec.operands[1].shape[1],
          .columns = x[1],
          .depth = x[0],
          .dtype = spec.operands[0].dtype,
          .groups = num_experts(spec),
          .grouped = GroupedSize::kDepth};
}

void grouped_linear_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[3]);
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId w = node.operands[1];
  const ValueId offsets = node.operands[2];
  if (builder.wants_grad(x)) {
    const ValueId dx = builder.new_grad(x);
    builder.add_node(
        node, "grouped_linear_dgrad", {},
        std::array{Operand{*dy}, Operand{w}, Operand{offsets}, Operand{dx, Access::kWrite}},
        Phase::kDgrad);
    builder.add_grad(node, x, dx);
  }
  builder.add_node(node, "grouped_linear_wgrad", to_attributes(GroupedWgradAttributes{}),
                   std::array{Operand{x}, Operand{*dy}, Operand{offsets},
                              Operand{builder.main_grad(w), Access::kReadWrite}},
                   Phase::kWgrad);
}

}  // namespace

const OpDefinition kGroupedLinearOp{
    .name = "grouped_linear",
    .summary = "y = x w_e^T for the rows of each expert.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_grouped_linear,
    .cost = grouped_cost<linear_shape>,
    .backward = grouped_linear_backward,
    .gemm_shape = linear_shape,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
};

const OpDefinition kGroupedLinearDgradOp{
    .name = "grouped_linear_dgrad",
    .summary = "dx = dy w_e for the rows of each expert.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_grouped_linear_dgrad,
    .cost = grouped_cost<linear_shape>,
    .gemm_shape = linear_shape,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
};

const OpDefinition kGroupedLinearWgradOp{
    .name = "grouped_linear_wgrad",
    .summary = "dw_e += dy^T x over the rows of each expert, into the main grad.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_grouped_linear_wgrad,
    .cost = grouped_cost<wgrad_shape>,
    .narrow_main_grads = true,
    .gemm_shape = wgrad_shape,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
};

ValueId grouped_linear(GraphBuilder& builder, ValueId x, ValueId weight, ValueId offsets,
                       std::string_view site) {
  const Value input = builder.value(x);
  const int64_t experts = builder.value(offsets).shape[0] - 1;
  const int64_t out = builder.value(weight).shape[0] / experts;
  const ValueId y = builder.add_activation(site, input.dtype, {input.shape[0], out});
  builder.add_node(
      "grouped_linear", {},
      std::array{Operand{x}, Operand{weight}, Operand{offsets}, Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace braid
