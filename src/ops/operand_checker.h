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
/// f32.
DType accumulator_dtype(DType dtype);

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
