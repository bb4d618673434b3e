#include "ops/cross_entropy.h"

#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

const OperandSpec& check_inputs(OperandChecker& operands,
                                const CrossEntropyAttributes& attributes) {
  const OperandSpec& logits = operands.next_floating("logits", Access::kRead, 2);
  operands.require(attributes.vocabulary > 0 && attributes.vocabulary <= logits.shape[1],
                   "vocabulary must lie in [1, columns of logits]");
  operands.expect("labels", Access::kRead, DType::kI32, {logits.shape[0]});
  operands.expect("loss_scale", Access::kRead, accumulator_dtype(logits.dtype), {1});
  return logits;
}

void check_cross_entropy(const OpSpec& spec) {
  OperandChecker operands(spec);
  const OperandSpec& logits = check_inputs(operands, attributes_of<CrossEntropyAttributes>(spec));
  operands.expect("loss", Access::kWrite, accumulator_dtype(logits.dtype), {1});
  operands.expect("lse", Access::kWrite, accumulator_dtype(logits.dtype), {logits.shape[0]});
  operands.done();
}

void check_cross_entropy_backward(const OpSpec& spec) {
  OperandChecker operands(spec);
  const OperandSpec& logits = check_inputs(operands, attributes_of<CrossEntropyAttributes>(spec));
  operands.expect("lse", Access::kRead, accumulator_dtype(logits.dtype), {logits.shape[0]});
  operands.expect("d_logits", Access::kWrite, logits.dtype, logits.shape);
  operands.done();
}

void cross_entropy_backward(BackwardBuilder& builder, const Node& node) {
  const ValueId logits = node.operands[0];
  const ValueId d_logits = builder.new_grad(logits);
  builder.add_node(node, "cross_entropy_backward", node.spec.attributes,
                   std::array{Operand{logits}, Operand{node.operands[1]}, Operand{node.operands[2]},
                              Operand{node.operands[4]}, Operand{d_logits, Access::kWrite}},
                   Phase::kDgrad);
  builder.add_grad(node, logits, d_logits);
}

}  // namespace

const OpDefinition kCrossEntropyOp{
    .name = "cross_entropy",
    .summary = "Scaled sum of the negative log-likelihoods of the labels.",
    .check = check_cross_entropy,
    .cost = elementwise_cost<4>,
    .backward = cross_entropy_backward,
};

const OpDefinition kCrossEntropyBackwardOp{
    .name = "cross_entropy_backward",
    .summary = "Gradient of the loss with respect to the logits.",
    .check = check_cross_entropy_backward,
    .cost = elementwise_cost<4>,
};

void cross_entropy(GraphBuilder& builder, ValueId logits, ValueId labels, ValueId loss_scale,
                   ValueId loss, int64_t vocabulary, std::string_view site) {
  const Value input = builder.value(logits);
  const ValueId lse = builder.add_activation(fmt::format("{}.lse", site),
                                             accumulator_dtype(input.dtype), {input.shape[0]});
  builder.add_node("cross_entropy", to_attributes(CrossEntropyAttributes{.vocabulary = vocabulary}),
                   std::array{Operand{logits}, Operand{labels}, Operand{loss_scale},
                              Operand{loss, Access::kWrite}, Operand{lse, Access::kWrite}},
                   site);
}

}  // namespace braid
