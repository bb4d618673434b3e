#pragma once

#include "ops/graph.h"

namespace braid {

/// Makes FP8 copies in the op that makes the value, so that the value never crosses memory: of the
/// activation functions and their backwards (is_quantize_source), if nothing else reads the value.
///
///   before: swiglu(g -> h)  quantize(h -> h8, h8t)
///   after:  quantize of swiglu(g -> h8, h8t)
///
/// The fused node has the place of the first one and the phase and site of the second. Changes no
/// bit.
void fuse_copies(StageGraph& graph);

}  // namespace braid
