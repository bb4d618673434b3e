#include "ops/optimizer.h"

#include <cmath>

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_squared_norm(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  operands.next_floating("x", Access::kRead, 1);
  operands.expect("partial", Access::kWrite, DType::kF64, {1});
  operands.done();
}

void check_sum(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next("x", Access::kRead, 1);
  operands.require(x.dtype == DType::kF64, "x must be f64");
  operands.expect("total", Access::kWrite, DType::kF64, {1});
  operands.done();
}

void check_clip_scale(const OpSpec& spec) {
  const auto attributes = attributes_of<ClipScaleAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& partials = operands.next("partials", Access::kRead, 1);
  operands.require(partials.dtype == DType::kF64, "partials must be f64");
  operands.require(attributes.max_norm >= 0, "max_norm must not be negative");
  operands.expect("grad_norm", Access::kWrite, DType::kF32, {1});
  operands.expect("scale", Access::kWrite, DType::kF32, {1});
  operands.done();
}

void check_adamw(const OpSpec& spec) {
  const auto attributes = attributes_of<AdamwAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& grad = next_gradient(operands);
  operands.expect("scale", Access::kRead, DType::kF32, {1});
  const DType moments = check_scalars(operands);
  operands.expect("weight", Access::kReadWrite, DType::kF32, grad.shape);
  operands.expect("exp_avg", Access::kReadWrite, moments, grad.shape);
  operands.expect("exp_avg_sq", Access::kReadWrite, moments, grad.shape);
  if (attributes.has_param) {
    operands.expect("param", Access::kWrite, DType::kBF16, grad.shape);
  }
  operands.done();
}

void check_balance_update(const OpSpec& spec) {
  const auto attributes = attributes_of<BalanceUpdateAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& grad = next_gradient(operands);
  operands.require(attributes.rate >= 0, "rate must not be negative");
  operands.expect("scale", Access::kRead, DType::kF32, {1});
  operands.expect("weight", Access::kReadWrite, DType::kF32, grad.shape);
  if (attributes.has_param) {
    operands.expect("param", Access::kWrite, DType::kBF16, grad.shape);
  }
  operands.done();
}

void check_average_weights(const OpSpec& spec) {
  const auto attributes = attributes_of<AverageWeightsAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& weight = operands.next("weight", Access::kRead, 1);
  operands.require(weight.dtype == DType::kF32, "weight must be f32");
  operands.require(attributes.decay >= 0 && attributes.decay < 1, "decay must lie in [0, 1)");
  operands.expect("scale", Access::kRead, DType::kF32, {1});
  operands.expect("average", Access::kReadWrite, DType::kF32, weight.shape);
  operands.done();
}

}  // namespace

std::array<float, 4> adamw_scalars(double learning_rate, double beta1, double beta2, int64_t step) {
  const auto t = static_cast<double>(step);
  return {static_cast<float>(learning_rate), static_cast<float>(1.0 - std::pow(beta1, t)),
          static_cast<float>(1.0 - std::pow(beta2, t)), static_cast<float>(step % (1 << 24))};
}

DType check_scalars(OperandChecker& operands) {
  const OperandSpec& scalars = operands.next("scalars", Access::kRead, 1);
  const int64_t num_scalars = scalars.shape[0];
  operands.require(scalars.dtype == DType::kF32 && (num_scalars == 3 || num_scalars == 4),
                   "scalars must be f32 [3], or [4] for bf16 moments");
  return num_scalars == 4 ? DType::kBF16 : DType::kF32;
}

DType moments_dtype(const OpSpec& update) {
  return update.operands.at(2).shape[0] == 4 ? DType::kBF16 : DType::kF32;
}

const OpDefinition kSquaredNormOp{
    .name = "squared_norm",
    .summary = "Sum of squares of a gradient range.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .role = OpRole::kGradientNorm,
    .check = check_squared_norm,
    .cost = elementwise_cost<2>,
    .split = kNeverSplit,
};

const OpDefinition kMatrixSquaresOp{
    .name = "matrix_squares",
    .summary = "Sum of squares of a matrix that is orthogonalised.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_squared_norm,
    .cost = elementwise_cost<2>,
    .split = kNeverSplit,
};

const OpDefinition kSumOp{
    .name = "sum",
    .summary = "Sum of a few f64 numbers, such as the squared norms of all gradients of a rank.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_sum,
    .cost = elementwise_cost<1>,
    .split = kNeverSplit,
};

const OpDefinition kClipScaleOp{
    .name = "clip_scale",
    .summary = "Gradient norm from partial sums of squares, and the factor that clips to max_norm.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_clip_scale,
    .cost = elementwise_cost<1>,
    .split = kNeverSplit,
};

const OpDefinition kAdamwOp{
    .name = "adamw",
    .summary =
        "Adam with decoupled weight decay on a range of fp32 weights, fused with the cast to "
        "compute dtype.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_adamw,
    .cost = elementwise_cost<15>,
    .split = kNeverSplit,
};

const OpDefinition kBalanceUpdateOp{
    .name = "balance_update",
    .summary = "Moves biases of routers against the sign of their experts' surplus of tokens.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_balance_update,
    .cost = elementwise_cost<2>,
    .split = kNeverSplit,
};

const OpDefinition kAverageWeightsOp{
    .name = "average_weights",
    .summary = "Moves averages of fp32 weights towards the updated weights.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_average_weights,
    .cost = elementwise_cost<3>,
    .split = kNeverSplit,
};

}  // namespace braid
