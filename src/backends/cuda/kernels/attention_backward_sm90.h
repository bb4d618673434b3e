#pragma once

#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/attention_calls.h"

namespace braid {

/// attention_backward by flash-attn-4's kernel for Hopper, which scripts/sm90_kernels compiles. A
/// block per head and 128 keys (96 at head size 192) iterates over the queries that see them and
/// keeps d_key and d_value in registers. It adds its part of d_query to fp32 memory after the block
/// of the next higher keys (a semaphore per head and tile of queries). That order depends only on
/// the shape, so the result is bitwise repeatable. Waiting blocks cannot deadlock: the blocks that
/// they wait for were started before. Source: Shah et al., FlashAttention-3, 2024; our changes:
/// scripts/sm90_kernels/attention.py.
///
/// At head size 192 value heads are promised to be zero from element 128 on (ValuePadding).
///
/// Requires `has_attention_backward_sm90`. Scratch: Sm90Scratch.
CudaKernel make_attention_backward_sm90(const OpSpec& spec, CudaContext& context);

}  // namespace braid
