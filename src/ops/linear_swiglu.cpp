#include "ops/linear_swiglu.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/expert_offsets.h"
#include "ops/expert_rows.h"
#include "ops/grouped_linear.h"
#include "ops/linear.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// Which two ops a fused op replaces, and where its operands are in theirs.
struct FusedForm {
  const OpDefinition* fused;
  const OpDefinition* product;
  const OpDefinition* activation;
  std::vector<Attribute> (*product_attributes)();
  size_t handed_on;    ///< operand of the activation
  bool keeps_product;  ///< its result is an operand of the fused op
  std::vector<FusedOperand> operands;
  std::vector<SharedOperand> shared;
};

std::vector<Attribute> no_attributes() {
  return {};
}

template <class Attributes>
std::vector<Attribute> default_attributes() {
  return to_attributes(Attributes{});
}

const std::array<FusedForm, 4>& forms() {
  static const std::array<FusedForm, 4> kForms{
      FusedForm{.fused = &kLinearSwigluOp,
                .product = &kLinearOp,
                .activation = &kSwigluOp,
                .product_attributes = default_attributes<LinearAttributes>,
                .handed_on = 0,
                .keeps_product = true,
                .operands = {{true, 0}, {true, 1}, {true, 2}, {false, 1}},
                .shared = {}},
      FusedForm{.fused = &kLinearDgradSwigluBackwardOp,
                .product = &kLinearDgradOp,
                .activation = &kSwigluBackwardOp,
                .product_attributes = default_attributes<LinearDgradAttributes>,
                .handed_on = 1,
                .keeps_product = false,
                .operands = {{true, 0}, {true, 1}, {false, 0}, {false, 2}},
                .shared = {}},
      FusedForm{.fused = &kGroupedLinearSwigluOp,
                .product = &kGroupedLinearOp,
                .activation = &kRoutedSwigluOp,
                .product_attributes = no_attributes,
                .handed_on = 0,
                .keeps_product = true,
                .operands = {{true, 0}, {true, 1}, {true, 2}, {false, 1}, {true, 3}, {false, 3}},
                .shared = {{.of_product = 2, .of_activation = 2}}},
      FusedForm{
          .fused = &kGroupedLinearDgradSwigluBackwardOp,
          .product = &kGroupedLinearDgradOp,
          .activation = &kRoutedSwigluBackwardOp,
          .product_attributes = no_attributes,
          .handed_on = 2,
          .keeps_product = false,
          .operands =
              {{true, 0}, {true, 1}, {true, 2}, {false, 0}, {false, 1}, {false, 4}, {false, 5}},
          .shared = {{.of_product = 2, .of_activation = 3}}}};
  return kForms;
}

const FusedForm* find_form(const OpDefinition* FusedForm::*part, const OpSpec& spec) {
  const auto found = std::ranges::find_if(
      forms(), [&](const FusedForm& form) { return (form.*part)->name == spec.op; });
  return found == forms().end() ? nullptr : &*found;
}

const FusedForm& form_of_activation(const OpSpec& activation) {
  const FusedForm* const form = find_form(&FusedForm::activation, activation);
  check(form != nullptr, "op {} is not an activation that is fused", activation.op);
  return *form;
}

void check_linear_swiglu(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == x.dtype && w.shape[1] == x.shape[1] && w.shape[0] % 2 == 0,
                   "w must be [2F,K] of x's dtype and K");
  operands.expect("gate_up", Access::kWrite, x.dtype, {x.shape[0], w.shape[0]});
  operands.expect("y", Access::kWrite, x.dtype, {x.shape[0], w.shape[0] / 2});
  operands.done();
}

void check_linear_dgrad_swiglu_backward(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& dy = operands.next_floating("dy", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  operands.require(w.dtype == dy.dtype && w.shape[0] == dy.shape[1],
                   "w must be [M,F] of dy's dtype and M");
  const Shape gate_up{dy.shape[0], 2 * w.shape[1]};
  operands.expect("gate_up", Access::kRead, dy.dtype, gate_up);
  operands.expect("d_gate_up", Access::kWrite, dy.dtype, gate_up);
  operands.done();
}

void check_grouped_linear_swiglu(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  const int64_t num_experts = next_offsets(operands);
  operands.require(
      w.dtype == x.dtype && w.shape[1] == x.shape[1] && w.shape[0] % (2 * num_experts) == 0,
      "w must be [E 2F,K] of x's dtype and K");
  const int64_t rows = x.shape[0];
  const int64_t gates_and_ups = w.shape[0] / num_experts;
  operands.expect("weights", Access::kRead, accumulator_dtype(x.dtype), {rows});
  operands.expect("gate_up", Access::kWrite, x.dtype, {rows, gates_and_ups});
  operands.expect("y", Access::kWrite, x.dtype, {rows, gates_and_ups / 2});
  operands.done();
}

void check_grouped_linear_dgrad_swiglu_backward(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& dy = operands.next_floating("dy", Access::kRead, 2);
  const OperandSpec& w = operands.next("w", Access::kRead, 2);
  const int64_t num_experts = next_offsets(operands);
  operands.require(w.dtype == dy.dtype && w.shape[0] == num_experts * dy.shape[1],
                   "w must be [E M,F] of dy's dtype and M");
  const Shape gate_up{dy.shape[0], 2 * w.shape[1]};
  operands.expect("gate_up", Access::kRead, dy.dtype, gate_up);
  operands.expect("weights", Access::kRead, accumulator_dtype(dy.dtype), {dy.shape[0]});
  operands.expect("d_gate_up", Access::kWrite, dy.dtype, gate_up);
  operands.expect("d_weights", Access::kWrite, accumulator_dtype(dy.dtype), {dy.shape[0]});
  operands.done();
}

// The arithmetic of both ops; only the operands cross memory.
OpCost fused_cost(const OpSpec& spec) {
  const ProductAndActivation parts = unfused(spec);
  OpCost cost = operand_bytes(spec);
  cost.flops = spec_cost(parts.product).flops + spec_cost(parts.activation).flops;
  return cost;
}

GemmShape fused_shape(const OpSpec& spec) {
  const OpSpec product = unfused(spec).product;
  return find_op(product.op).gemm_shape(product);
}

OperandSpec with_access(OperandSpec operand, Access access) {
  operand.access = access;
  return operand;
}

/// What a product hands on that is no operand of the fused op: the gradient behind its second
/// operand, which has F columns.
OperandSpec gradient_handed_on(const OpSpec& spec) {
  return {.dtype = spec.operands[0].dtype,
          .access = Access::kWrite,
          .shape = {spec.operands[0].shape[0], spec.operands[1].shape[1]}};
}

size_t num_operands(const FusedForm& form, bool of_product) {
  const auto of_part = std::ranges::count_if(
      form.operands, [&](const FusedOperand& it) { return it.of_product == of_product; });
  const size_t result = of_product ? (form.keeps_product ? 0 : 1) : 1 + form.shared.size();
  return static_cast<size_t>(of_part) + result;
}

}  // namespace

const OpDefinition kLinearSwigluOp{
    .name = "linear_swiglu",
    .summary = "gate_up = x w^T, y = swiglu(gate_up).",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_linear_swiglu,
    .cost = fused_cost,
    .gemm_shape = fused_shape,
    .split = kNeverSplit,
    .values = ValueRule::kOfParts,
};

const OpDefinition kLinearDgradSwigluBackwardOp{
    .name = "linear_dgrad_swiglu_backward",
    .summary = "Gradient of swiglu from that behind the product that reads its result, dy w.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_linear_dgrad_swiglu_backward,
    .cost = fused_cost,
    .gemm_shape = fused_shape,
    .split = kNeverSplit,
    .values = ValueRule::kOfParts,
};

const OpDefinition kGroupedLinearSwigluOp{
    .name = "grouped_linear_swiglu",
    .summary = "For the rows of each expert: gate_up = x w_e^T, y = weights * swiglu(gate_up).",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_grouped_linear_swiglu,
    .cost = fused_cost,
    .gemm_shape = fused_shape,
    .split = kNeverSplit,
    .values = ValueRule::kOfParts,
    .integers = offsets_into_rows,
};

const OpDefinition kGroupedLinearDgradSwigluBackwardOp{
    .name = "grouped_linear_dgrad_swiglu_backward",
    .summary = "Gradients of routed_swiglu from that behind the experts' second product, dy w_e.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_grouped_linear_dgrad_swiglu_backward,
    .cost = fused_cost,
    .gemm_shape = fused_shape,
    .split = kNeverSplit,
    .values = ValueRule::kOfParts,
    .integers = offsets_into_rows,
};

bool is_fused_product(const OpSpec& spec) {
  return find_form(&FusedForm::fused, spec) != nullptr;
}

bool is_fusable_activation(const OpSpec& spec) {
  return find_form(&FusedForm::activation, spec) != nullptr;
}

size_t handed_on(const OpSpec& activation) {
  return form_of_activation(activation).handed_on;
}

bool keeps_product(const OpSpec& activation) {
  return form_of_activation(activation).keeps_product;
}

bool fusing_keeps_bits(const OpSpec& activation) {
  return activation.op != kRoutedSwigluBackwardOp.name;
}

std::span<const FusedOperand> fused_operands(const OpSpec& activation) {
  return form_of_activation(activation).operands;
}

std::span<const SharedOperand> shared_operands(const OpSpec& activation) {
  return form_of_activation(activation).shared;
}

ProductAndActivation unfused(const OpSpec& spec) {
  const FusedForm* const form = find_form(&FusedForm::fused, spec);
  check(form != nullptr, "op {} is not a product with an activation function", spec.op);
  ProductAndActivation parts{
      .product = {std::string(form->product->name), form->product_attributes(),
                  std::vector<OperandSpec>(num_operands(*form, true))},
      .activation = {std::string(form->activation->name),
                     {},
                     std::vector<OperandSpec>(num_operands(*form, false))}};
  const OperandSpec between = form->keeps_product ? OperandSpec{} : gradient_handed_on(spec);
  PartOperands<OperandSpec> operands(parts, spec.operands, between);
  operands.activation()[form->handed_on].access = Access::kRead;
  std::ranges::copy(operands.product(), parts.product.operands.begin());
  std::ranges::copy(operands.activation(), parts.activation.operands.begin());
  return parts;
}

std::optional<OpSpec> fused(const ProductAndActivation& parts) {
  const OpSpec& product = parts.product;
  const OpSpec& activation = parts.activation;
  const FusedForm* const form = find_form(&FusedForm::activation, activation);
  if (form == nullptr || product.op != form->product->name ||
      product.operands.size() != num_operands(*form, true)) {  // more: with a bias
    return std::nullopt;
  }
  const OperandSpec& result = product.operands.back();
  const bool is_read_whole =
      activation.operands[form->handed_on] == with_access(result, Access::kRead);
  const bool shares = std::ranges::all_of(form->shared, [&](const SharedOperand& it) {
    return product.operands[it.of_product] == activation.operands[it.of_activation];
  });
  if (result.access != Access::kWrite || !is_read_whole || !shares) {
    return std::nullopt;
  }
  OpSpec both{std::string(form->fused->name), {}, {}};
  for (const auto& [of_product, operand] : form->operands) {
    both.operands.push_back((of_product ? product : activation).operands[operand]);
  }
  return both;
}

}  // namespace braid
