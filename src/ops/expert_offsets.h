#pragma once

#include <cstdint>

#include "ops/integer_values.h"
#include "ops/op_traits.h"
#include "ops/operand_checker.h"

/// Offsets of experts: i32 [E+1], where the rows of each of E experts begin among rows in the order
/// of experts, and where those of the last one end.
namespace braid {

/// Checks that the next operand is read and has that form. Returns E.
inline int64_t next_offsets(OperandChecker& operands) {
  const OperandSpec& offsets = operands.next("offsets", Access::kRead, 1);
  operands.require(offsets.dtype == DType::kI32 && offsets.shape[0] >= 2,
                   "offsets must be i32 [E+1] of at least one expert");
  return offsets.shape[0] - 1;
}

/// What offsets into the rows of the op's first operand must hold.
inline IntegerNeed offsets_into_rows(const OpSpec& spec, size_t /*operand*/) {
  return {.rule = IntegerRule::kOffsets, .limit = spec.operands[0].shape[0]};
}

/// The cost of a product of the rows of each expert. Reads the weights of all experts once,
/// whatever rows they have.
template <GemmShape (*kShape)(const OpSpec&)>
OpCost grouped_cost(const OpSpec& spec) {
  const GemmShape shape = kShape(spec);
  OpCost cost = operand_bytes(spec);
  cost.flops = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
               static_cast<double>(shape.depth);
  return cost;
}

}  // namespace braid
