#pragma once

#include <cstddef>

#include "ops/op.h"

namespace braid {

/// Ops that combine results computed in pieces. No attributes, not differentiable: passes insert
/// them, after autodiff.
///
/// sum_blocks: x0, x1, ... -> y, all of one floating-point type; y = x0 + x1 + ..., added in this
/// order in fp32 (f64 for f64) and rounded once. This is bitwise equal to a reduce_scatter of
/// members whose blocks these are, in group order.
///
/// largest_of_blocks: x0, x1, ... -> y, all i32; y = the largest of them, element by element, as
/// all_reduce_max takes it.
///
/// join_columns: x0 [n, c0], x1 [n, c1], ... -> y [n, c0 + c1 + ...], of one dtype; x0 first.
///
/// join_blocks: x [b*n, c] -> y [n, b*c], of one dtype: the b blocks of n rows side by side, as
/// join_columns puts them. For what an all_gather leaves one below the other. The same op cuts a
/// matrix [n, b*c] into b blocks of columns, one after the other, if the operands are seen as x
/// [n*b, c] and y [b, n*c].
extern const OpDefinition kSumBlocksOp;
extern const OpDefinition kLargestOfBlocksOp;
extern const OpDefinition kJoinColumnsOp;
extern const OpDefinition kJoinBlocksOp;

/// Maximum number of blocks of one task: kernels take their addresses as arguments.
inline constexpr size_t kMaxBlocks = 64;

}  // namespace braid
