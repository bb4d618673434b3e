#pragma once

#include "backends/cuda/kernel.h"

namespace braid {

/// attention by flash-attn-4's kernel for Hopper, which scripts/sm90_kernels compiles. Bitwise
/// repeatable: a block computes its queries alone. Source: Shah et al., FlashAttention-3, 2024.
///
/// Requires `has_attention_sm90` (attention_calls.h). No scratch.
CudaKernel make_attention_sm90(const OpSpec& spec, CudaContext& context);

}  // namespace braid
