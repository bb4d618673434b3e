#pragma once

#include "passes/pass.h"

namespace braid {

/// Moves weight gradients behind calls of context ranks that the backward waits for, so that they
/// hide them. Of a layer whose attention exchanges heads for sequence:
///   before: wgrad(fc) dgrad(proj) wgrad(proj)  all_to_all(d_out)  attention_backward
///           all_to_all(d_qkv)  dgrad(qkv)
///   after:  dgrad(proj)  all_to_all(d_out)  wgrad(fc)  attention_backward  all_to_all(d_qkv)
///           wgrad(proj)  dgrad(qkv)
/// For each all_to_all and reduce_scatter of a backward that the next compute task reads: the
/// nearest weight gradients in front of it in its job that no other call has taken, the last call
/// first; with a cost model as many as take the time of the call, else one. Gathers and shifts of
/// keys and values are left to context_ring, which starts them earlier. Jobs of schedules that
/// split the backward have no weight gradients in front of their calls: nothing moves. What depends
/// on a weight gradient and stands on the way moves along if it is of phase wgrad or comm;
/// otherwise the weight gradient stays. What a weight gradient reads lives longer, by the part of a
/// layer's backward that it waits for.
///
/// Counts moved weight gradients. Rounding does not change. Goes by prices that are the same on all
/// ranks. Place: behind what delays weight gradients within jobs, in front of what moves reductions
/// of gradients to where these are ready. assign_streams then takes the calls to a stream of their
/// own.
PassResult delay_context_wgrad(Program program, const PassContext& context);

Pass delay_context_wgrad_pass();

}  // namespace braid
