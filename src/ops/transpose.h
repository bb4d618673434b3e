#pragma once

#include "ops/op.h"

namespace braid {

/// transpose: x [r, c] -> y [c, r] of one type with one byte. The copy of a weight by columns, from
/// that by rows, if both share the scales of square blocks.
extern const OpDefinition kTransposeOp;

}  // namespace braid
