#pragma once

#include "passes/pass.h"

namespace braid {

/// Sends keys and values to the next context rank while attention to the local ones is computed.
/// One ring, where `step` is the attention to the keys and values of one rank:
///   before: pack(-> kv0)  step(kv0)  ring_shift(kv0 -> kv1)  step(kv1)  ring_shift(kv1 -> kv2)
///           step(kv2)
///   after:  pack(-> kv0)  undefine(-> kv1)  ring_shift(kv0 -> kv1)  step(kv0)  undefine(-> kv0)
///           undefine(-> kv2)  ring_shift(kv1 -> kv2)  step(kv1)  undefine(-> kv1)  step(kv2)
/// A shift of received data starts where that data is first used. A shift of computed data (the
/// gradients of keys and values, one step later in the backward) starts directly after it is
/// computed. An `undefine` before the shift gives it the memory that it fills. An `undefine` before
/// the first use of the received data takes back the memory that was sent. So besides the rank's
/// own keys and values two buffers exist at a time, for any number of ranks.
///
/// In the backward, the first shift or all-gather of a layer also starts early, together with the
/// packing before it: before the two matrix products in front of it (those of the output
/// projection). The forward has already computed what it sends. In the forward, keys and values are
/// computed directly before the attention, so an all-gather of them has nothing to run beside. The
/// same holds for an all-to-all, whose operands are the last thing computed: see split_exchange.h
/// and, for the backward, delay_context_wgrad.h.
///
/// Candidates: tasks of phase comm on a compute stream, in a group of kind context, that are the
/// only writers of a step buffer. This pass only decides the order; assign_streams moves the tasks
/// to a stream of their own. Counts moved tasks and buffers that change hands. Rounding does not
/// change. Place: after recompute, which may repeat the packing. Source: Liu et al., Ring
/// Attention, 2023; Transformer Engine's context-parallel attention.
PassResult context_ring(Program program);

Pass context_ring_pass();

}  // namespace braid
