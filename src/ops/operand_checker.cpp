#include "ops/operand_checker.h"

namespace braid {

const OperandSpec& OperandChecker::take(std::string_view name, Access access) {
  check(position_ < spec_.operands.size(), "op {}: operand {} ({}) is missing", spec_.op, position_,
        name);
  const OperandSpec& operand = spec_.operands[position_++];
  check(operand.access == access, "op {}: operand {} has access {}, expected {}", spec_.op, name,
        static_cast<int>(operand.access), static_cast<int>(access));
  return operand;
}

const OperandSpec& OperandChecker::next(std::string_view name, Access access, int rank) {
  const OperandSpec& operand = take(name, access);
  check(operand.shape.rank() == rank, "op {}: operand {} has shape {}, expected {} dimensions",
        spec_.op, name, to_string(operand.shape), rank);
  return operand;
}

const OperandSpec& OperandChecker::next_floating(std::string_view name, Access access, int rank) {
  const OperandSpec& operand = next(name, access, rank);
  check(is_floating_point(operand.dtype), "op {}: operand {} is {}, expected floating point",
        spec_.op, name, dtype_name(operand.dtype));
  return operand;
}

void OperandChecker::expect(std::string_view name, Access access, DType dtype, const Shape& shape) {
  const OperandSpec& operand = take(name, access);
  check(operand.dtype == dtype && operand.shape == shape,
        "op {}: operand {} is {} {}, expected {} {}", spec_.op, name, dtype_name(operand.dtype),
        to_string(operand.shape), dtype_name(dtype), to_string(shape));
}

DType OperandChecker::expect_main_grad(std::string_view name, Access access, DType values,
                                       const Shape& shape) {
  const OperandSpec& operand = take(name, access);
  check(is_main_grad_dtype(values, operand.dtype) && operand.shape == shape,
        "op {}: operand {} is {} {}, expected {} {}{}", spec_.op, name, dtype_name(operand.dtype),
        to_string(operand.shape), dtype_name(accumulator_dtype(values)), to_string(shape),
        values == DType::kBF16 ? ", or bf16" : "");
  return operand.dtype;
}

void OperandChecker::done() const {
  check(position_ == spec_.operands.size(), "op {} has {} operands, expected {}", spec_.op,
        spec_.operands.size(), position_);
}

void OperandChecker::require(bool condition, std::string_view rule) const {
  check(condition, "op {}: {}", spec_.op, rule);
}

DType accumulator_dtype(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

bool is_main_grad_dtype(DType values, DType dtype) {
  return dtype == accumulator_dtype(values) || (dtype == DType::kBF16 && values == DType::kBF16);
}

const OperandSpec& next_gradient(OperandChecker& operands) {
  const OperandSpec& grad = operands.next("grad", Access::kRead, 1);
  operands.require(is_main_grad_dtype(DType::kBF16, grad.dtype), "grad must be f32 or bf16");
  return grad;
}

int rank_of(const OpSpec& spec, size_t operand) {
  return operand < spec.operands.size() ? spec.operands[operand].shape.rank() : 0;
}

double size_bytes(const OperandSpec& operand) {
  return static_cast<double>(operand.shape.num_elems()) *
         static_cast<double>(dtype_bytes(operand.dtype));
}

OpCost operand_bytes(const OpSpec& spec) {
  OpCost cost;
  for (const OperandSpec& operand : spec.operands) {
    const auto bytes = static_cast<double>(operand.shape.num_elems()) *
                       static_cast<double>(dtype_bytes(operand.dtype));
    cost.bytes_read += reads(operand.access) ? bytes : 0;
    cost.bytes_written += writes(operand.access) ? bytes : 0;
  }
  return cost;
}

double elems(const OpSpec& spec, size_t operand) {
  return static_cast<double>(spec.operands[operand].shape.num_elems());
}

}  // namespace braid
