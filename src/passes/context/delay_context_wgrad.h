#pragma once

#include "passes/pass.h"

namespace braid {

/// Moves weight gradients behind calls of context ranks, and of ranks that exchange rows of
/// experts, that the backward waits for, so that they hide these calls. For a layer whose attention
/// exchanges heads for sequence:
///   before: wgrad(fc) dgrad(proj) wgrad(proj)  all_to_all(d_out)  attention_backward
///           all_to_all(d_qkv)  dgrad(qkv)
///   after:  dgrad(proj)  all_to_all(d_out)  wgrad(fc)  attention_backward  all_to_all(d_qkv)
///           wgrad(proj)  dgrad(qkv)
/// Candidates are each all_to_all, reduce_scatter, dispatch_rows and combine_rows of a backward
/// whose result the next compute task reads, the last call first. Each call takes the nearest
/// weight gradients before it in its job that no other call has taken: with a cost model, enough to
/// cover the time of the call; else one. Gathers and shifts of keys and values are left to
/// context_ring, which starts them earlier. In schedules that split the backward, no weight
/// gradients come before the calls of a job, so nothing moves. Tasks between the two places that
/// depend on a weight gradient move with it if their phase is wgrad or comm; otherwise the weight
/// gradient stays. Operands of a moved weight gradient live longer, by the part of the layer's
/// backward that it is delayed.
///
/// Counts moved weight gradients. Rounding does not change. Uses prices that are the same on all
/// ranks. Place: after passes that delay weight gradients within jobs, before passes that move
/// reductions to where gradients are ready. assign_streams then moves the calls to a stream of
/// their own.
PassResult delay_context_wgrad(Program program, const PassContext& context);

Pass delay_context_wgrad_pass();

}  // namespace braid
