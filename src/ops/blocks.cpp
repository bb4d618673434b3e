#include "ops/blocks.h"

#include <cstdint>
#include <vector>

#include "ops/attributes.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"

namespace braid {
namespace {

/// Number of operands before y.
size_t num_blocks(const OpSpec& spec, const OperandChecker& operands) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  operands.require(spec.operands.size() >= 2 && spec.operands.size() <= kMaxBlocks + 1,
                   "there must be 1 to 64 x, and y");
  return spec.operands.size() - 1;
}

/// The other blocks, and y: as the first block.
void check_like_first(OperandChecker& operands, const OperandSpec& first, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    operands.expect("x", Access::kRead, first.dtype, first.shape);
  }
  operands.expect("y", Access::kWrite, first.dtype, first.shape);
  operands.done();
}

void check_sum_blocks(const OpSpec& spec) {
  OperandChecker operands(spec);
  const size_t count = num_blocks(spec, operands);
  check_like_first(
      operands, operands.next_floating("x", Access::kRead, spec.operands[0].shape.rank()), count);
}

void check_largest_of_blocks(const OpSpec& spec) {
  OperandChecker operands(spec);
  const size_t count = num_blocks(spec, operands);
  const OperandSpec& first = operands.next("x", Access::kRead, spec.operands[0].shape.rank());
  operands.require(first.dtype == DType::kI32, "x must be i32");
  check_like_first(operands, first, count);
}

void check_join_columns(const OpSpec& spec) {
  OperandChecker operands(spec);
  const size_t count = num_blocks(spec, operands);
  const OperandSpec& first = operands.next("x", Access::kRead, 2);
  Shape whole = first.shape;
  for (size_t i = 1; i < count; ++i) {
    const OperandSpec& next = operands.next("x", Access::kRead, 2);
    operands.require(next.dtype == first.dtype && next.shape[0] == first.shape[0],
                     "all x must have one dtype and number of rows");
    whole[1] += next.shape[1];
  }
  operands.expect("y", Access::kWrite, first.dtype, whole);
  operands.done();
}

void check_join_blocks(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next("x", Access::kRead, 2);
  const OperandSpec& y = operands.next("y", Access::kWrite, 2);
  operands.require(y.dtype == x.dtype, "x and y must have one dtype");
  operands.require(y.shape[0] > 0 && x.shape[0] % y.shape[0] == 0 &&
                       y.shape[1] == x.shape[0] / y.shape[0] * x.shape[1],
                   "y must have the blocks of rows of x side by side");
  operands.done();
}

/// Of scales, which are few: rows of a product in pieces read the blocks of their own scales. FP8
/// matrices have a block for each row and rank, and are read as they are.
std::vector<int64_t> joined_blocks(const OpSpec& spec) {
  std::vector<int64_t> sources;
  if (is_fp8(spec.operands[0].dtype)) {
    return sources;
  }
  const int64_t rows = spec.operands[1].shape[0];
  const int64_t ranks = spec.operands[0].shape[0] / rows;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      sources.push_back(rank * rows + row);
    }
  }
  return sources;
}

OpCost sum_blocks_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = static_cast<double>(spec.operands.size() - 2) * elems(spec, 0);
  return cost;
}

}  // namespace

const OpDefinition kSumBlocksOp{
    .name = "sum_blocks",
    .summary = "y = x0 + x1 + ... in this order, rounded once.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_sum_blocks,
    .cost = sum_blocks_cost,
    .kernel_rate = {.part = 0.93},
    .split = kNeverSplit,
    .values = ValueRule::kSum,
};

const OpDefinition kLargestOfBlocksOp{
    .name = "largest_of_blocks",
    .summary = "y = the largest of x0, x1, ..., element by element.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_largest_of_blocks,
    .cost = sum_blocks_cost,
    .kernel_rate = {.part = 0.93},
    .split = kNeverSplit,
};

const OpDefinition kJoinColumnsOp{
    .name = "join_columns",
    .summary = "The columns of x0, x1, ... side by side.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_join_columns,
    .cost = elementwise_cost<0>,
    .split = kNeverSplit,
    .values = ValueRule::kColumns,
};

const OpDefinition kJoinBlocksOp{
    .name = "join_blocks",
    .summary = "The blocks of rows of x side by side.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_join_blocks,
    .cost = elementwise_cost<0>,
    .split = kNeverSplit,
    .pieces = {.block_sources = joined_blocks},
};

}  // namespace braid
