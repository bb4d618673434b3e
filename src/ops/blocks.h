#pragma once

#include <cstddef>

#include "ops/op.h"

namespace braid {

/// What puts results together that were made in pieces. No attributes, not differentiable: passes
/// place them, behind autodiff.
///
/// sum_blocks: x0, x1, ... -> y, all of one floating-point type; y = x0 + x1 + ..., added in this
/// order in fp32 (f64 for f64) and rounded once: the bits of a reduce_scatter whose members' blocks
/// these are, in group order.
///
/// join_columns: x0 [n, c0], x1 [n, c1], ... -> y [n, c0 + c1 + ...], of one dtype; x0 first.
extern const OpDefinition kSumBlocksOp;
extern const OpDefinition kJoinColumnsOp;

/// Most blocks of one task: kernels take their addresses as arguments.
inline constexpr size_t kMaxBlocks = 64;

}  // namespace braid
