#include "ops/momentum.h"

#include "ops/attributes.h"
#include "ops/operand_checker.h"
#include "ops/optimizer.h"

namespace braid {
namespace {

void check_one_moment(const OpSpec& spec, bool has_moment, bool has_param) {
  OperandChecker operands(spec);
  const OperandSpec& grad = next_gradient(operands);
  operands.expect("scale", Access::kRead, DType::kF32, {1});
  DType moments = DType::kF32;
  if (has_moment) {
    moments = check_scalars(operands);
  } else {
    operands.expect("scalars", Access::kRead, DType::kF32, {3});
  }
  operands.expect("weight", Access::kReadWrite, DType::kF32, grad.shape);
  if (has_moment) {
    operands.expect("exp_avg", Access::kReadWrite, moments, grad.shape);
  }
  if (has_param) {
    operands.expect("param", Access::kWrite, DType::kBF16, grad.shape);
  }
  operands.done();
}

void check_lion(const OpSpec& spec) {
  check_one_moment(spec, true, attributes_of<LionAttributes>(spec).has_param);
}

void check_sgd(const OpSpec& spec) {
  const auto attributes = attributes_of<SgdAttributes>(spec);
  check_one_moment(spec, attributes.momentum > 0, attributes.has_param);
}

}  // namespace

const OpDefinition kLionOp{
    .name = "lion",
    .summary = "Moves fp32 weights by the sign of a mean of gradients (Lion).",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_lion,
    .cost = elementwise_cost<11>,
    .split = kNeverSplit,
};

const OpDefinition kSgdOp{
    .name = "sgd",
    .summary = "Stochastic gradient descent on fp32 weights, with momentum if it is not 0.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_sgd,
    .cost = elementwise_cost<7>,
    .split = kNeverSplit,
};

}  // namespace braid
