#pragma once

#include "ops/mamba2.h"
#include "ops/token_cache.h"

namespace braid {

/// cached_mamba2: zxbcdt [B*R,2I+2GS+H], the six weights of mamba2, begins i32 [B], counts i32 [B]
/// (token_cache.h), window [B,K,I+2GS] and states f32 (f64 for f64 data) [B,H,P,S] (both
/// kReadWrite) -> v [B*R,I]. For each of B sequences, continues mamba2 (ops/mamba2.h) with its
/// first counts[b] rows; `window` holds x, B and C of its last K tokens before the convolution (0
/// for those before its first), and `states` the states after them. Rows from counts[b] on are
/// padding, and their results 0. Attributes as of mamba2, of which `sequence` is R, `weight_parts`
/// 1, and `chunk` has no effect: one row follows the other. Not differentiable.
extern const OpDefinition kCachedMamba2Op;

/// Returns v. The caches are the values "<prefix>.<site>.window" and "<prefix>.<site>.states".
ValueId cached_mamba2(GraphBuilder& builder, const Mamba2Operands& operands,
                      const CacheOperands& cache, const Mamba2Attributes& attributes,
                      std::string_view site);

}  // namespace braid
