#pragma once

#include "ops/graph.h"

namespace braid {

/// Makes FP8 copies in the op that makes the value, so that the value never crosses memory: of ops
/// with SourceTraits, which are activation functions, their backwards and norms, if nothing else
/// reads the value.
///
///   before: swiglu(g -> h)  quantize(h -> h8, h8t)
///   after:  quantize of swiglu(g -> h8, h8t)
///
///   before: add_rmsnorm(x, r, w -> s, y, rstd)  quantize(y -> y8, y8t)
///   after:  quantize of add_rmsnorm(x, r, w -> s, rstd, y8, y8t)
///
/// The fused node has the place of the first one and the phase and site of the second. Changes no
/// bit.
void fuse_copies(StageGraph& graph);

}  // namespace braid
