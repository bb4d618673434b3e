#include "ops/muon.h"

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void require_narrow(OperandChecker& operands, const OperandSpec& operand, std::string_view name) {
  operands.require(operand.dtype == DType::kF32 || operand.dtype == DType::kBF16,
                   fmt::format("{} must be f32 or bf16", name));
}

void check_muon_mean(const OpSpec& spec) {
  static_cast<void>(attributes_of<MuonMeanAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& grad = next_gradient(operands);
  operands.expect("scale", Access::kRead, DType::kF32, {1});
  const DType moments = check_scalars(operands);
  operands.expect("exp_avg", Access::kReadWrite, moments, grad.shape);
  const OperandSpec& update = operands.next("update", Access::kWrite, 1);
  require_narrow(operands, update, "update");
  operands.require(update.shape == grad.shape, "update must have the shape of grad");
  operands.done();
}

void check_place(OperandChecker& operands, const MatrixPlaceAttributes& place,
                 const OperandSpec& flat, const OperandSpec& x) {
  const size_t rows = place.transposed ? 1 : 0;
  const int64_t columns = x.shape[1 - rows];
  operands.require(flat.dtype == x.dtype, "flat and x must have one dtype");
  operands.require(place.pitch >= columns, "rows must not overlap");
  operands.require(flat.shape[0] == (x.shape[rows] - 1) * place.pitch + columns,
                   "flat must end with the last row");
}

void check_take_matrix(const OpSpec& spec) {
  const auto place = attributes_of<MatrixPlaceAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& flat = operands.next("flat", Access::kRead, 1);
  require_narrow(operands, flat, "flat");
  const OperandSpec& x = operands.next("x", Access::kWrite, 2);
  check_place(operands, place, flat, x);
  operands.done();
}

void check_put_matrix(const OpSpec& spec) {
  const auto attributes = attributes_of<PutMatrixAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next("x", Access::kRead, 2);
  require_narrow(operands, x, "x");
  const OperandSpec& flat = operands.next("flat", Access::kReadWrite, 1);
  check_place(operands, attributes.place, flat, x);
  operands.done();
}

void check_normalize(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  operands.expect("squares", Access::kRead, DType::kF64, {1});
  require_narrow(operands, operands.next("x", Access::kReadWrite, 1), "x");
  operands.done();
}

void check_weighted_sum(const OpSpec& spec) {
  static_cast<void>(attributes_of<WeightedSumAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next("x", Access::kRead, 1);
  require_narrow(operands, x, "x");
  operands.expect("y", Access::kReadWrite, x.dtype, x.shape);
  operands.done();
}

void check_muon_update(const OpSpec& spec) {
  const auto attributes = attributes_of<MuonUpdateAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& update = operands.next("update", Access::kRead, 1);
  require_narrow(operands, update, "update");
  operands.expect("scale", Access::kRead, DType::kF32, {1});
  operands.expect("scalars", Access::kRead, DType::kF32, {3});
  operands.expect("weight", Access::kReadWrite, DType::kF32, update.shape);
  if (attributes.has_param) {
    operands.expect("param", Access::kWrite, DType::kBF16, update.shape);
  }
  operands.done();
}

}  // namespace

MatrixSize matrix_size(const OpSpec& spec) {
  const size_t x = spec.operands[0].shape.rank() == 2 ? 0 : 1;
  const bool transposed = std::get<bool>(*spec.find_attribute("transposed"));
  const Shape& shape = spec.operands[x].shape;
  return {.rows = shape[transposed ? 1 : 0], .columns = shape[transposed ? 0 : 1]};
}

const OpDefinition kMuonMeanOp{
    .name = "muon_mean",
    .summary = "Mean of gradients of matrices, of which Muon makes updates.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_muon_mean,
    .cost = elementwise_cost<7>,
    .split = kNeverSplit,
};

const OpDefinition kTakeMatrixOp{
    .name = "take_matrix",
    .summary = "Copies a matrix, or its transpose, out of a flat buffer.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_take_matrix,
    .cost = elementwise_cost<0>,
    .split = kNeverSplit,
};

const OpDefinition kPutMatrixOp{
    .name = "put_matrix",
    .summary = "Copies a matrix, or its transpose, times a factor into a flat buffer.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_put_matrix,
    .cost = elementwise_cost<1>,
    .split = kNeverSplit,
};

const OpDefinition kNormalizeOp{
    .name = "normalize",
    .summary = "Divides by the root of a sum of squares.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_normalize,
    .cost = elementwise_cost<1>,
    .split = kNeverSplit,
};

const OpDefinition kWeightedSumOp{
    .name = "weighted_sum",
    .summary = "Weighted sum of two values in place of the second.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_weighted_sum,
    .cost = elementwise_cost<3>,
    .split = kNeverSplit,
};

const OpDefinition kMuonUpdateOp{
    .name = "muon_update",
    .summary = "Moves fp32 weights by orthogonalised updates, with decoupled weight decay.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kOptimizer,
    .check = check_muon_update,
    .cost = elementwise_cost<4>,
    .split = kNeverSplit,
};

}  // namespace braid
