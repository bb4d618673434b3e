#pragma once

#include <string_view>

#include "base/errors.h"
#include "ir/op_spec.h"
#include "ops/op.h"

namespace braid {

/// Checks the operands of a spec one after the other, in the order of the op's declaration. Every
/// call throws InternalError naming op, operand, found and expected.
class OperandChecker {
 public:
  explicit OperandChecker(const OpSpec& spec) : spec_(spec) {}

  /// The next operand, whose shape determines the others': only rank and access are checked.
  const OperandSpec& next(std::string_view name, Access access, int rank);

  /// The same; its dtype must be a floating-point one.
  const OperandSpec& next_floating(std::string_view name, Access access, int rank);

  /// The next operand must be exactly this.
  void expect(std::string_view name, Access access, DType dtype, const Shape& shape);

  /// The next operand is a main grad that the op adds up for values of dtype `values`: it must have
  /// this shape, and the dtype of `accumulator_dtype`, or be bf16 if the values are. Returns its
  /// dtype.
  DType expect_main_grad(std::string_view name, Access access, DType values, const Shape& shape);

  /// Leaves out operands that were checked otherwise.
  void skip(size_t num_operands) { position_ += num_operands; }

  /// All operands must have been checked.
  void done() const;

  void require(bool condition, std::string_view rule) const;

 private:
  const OperandSpec& take(std::string_view name, Access access);

  const OpSpec& spec_;
  size_t position_ = 0;
};

/// Dtype of statistics, main grads and optimizer state for data of `dtype`: f64 for f64, otherwise
/// f32. Main grads and moments may be bf16 instead (parallel/optimizer_options.h).
DType accumulator_dtype(DType dtype);

/// Whether a main grad of values of dtype `values` may have that dtype.
bool is_main_grad_dtype(DType values, DType dtype);

/// The next operand of an optimizer's op, a gradient: f32 or bf16 [n].
const OperandSpec& next_gradient(OperandChecker& operands);

/// Number of dimensions of an operand that may have any number; 0 if it is missing.
int rank_of(const OpSpec& spec, size_t operand);

double size_bytes(const OperandSpec& operand);

/// Bytes of the spec's operands, read and written once each.
OpCost operand_bytes(const OpSpec& spec);

/// Elements of one operand.
double elems(const OpSpec& spec, size_t operand);

/// A cost function for ops whose arithmetic is a few operations per element of operand 0.
template <int kFlopsPerElement>
OpCost elementwise_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = kFlopsPerElement * elems(spec, 0);
  return cost;
}

constexpr Access accumulate_access(bool accumulate) {
  return accumulate ? Access::kReadWrite : Access::kWrite;
}

}  // namespace braid
