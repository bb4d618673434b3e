#pragma once

#include "passes/pass.h"

namespace braid {

/// Moves each communication of gradients to directly after the last task that it depends on, so
/// that it can run under the rest of the backward. Several that become possible at the same place
/// keep their order. What rounds gradients in front of it, and what adds its result to the main
/// gradients, moves along.
///   before: wgrad(b -> rw gb)  wgrad(a -> rw ga)  all_reduce(-> rw ga)  all_reduce(-> rw gb)
///   after:  wgrad(b -> rw gb)  all_reduce(-> rw gb)  wgrad(a -> rw ga)  all_reduce(-> rw ga)
/// Gradient communication: phase comm, writing a buffer of role grad or main_grad. One that follows
/// another and whose group carries activations too (partial sums of tensor ranks) stays where it
/// is: it cannot leave the compute stream, which would wait there for the first. One between stages
/// (a tied embedding) stays behind the last message: the other stage comes to it later than that.
///
/// Norms of gradients that stand side by side take the order of the reductions: all but those of
/// the last gradients run beside the last reductions.
///
/// Where gradients are sharded, the whole gradient of a unit is a step buffer (role grad). It is
/// given back to the compute stream when the next unit's is reduced and another one begins:
///   before: wgrad(c -> gc)  wgrad(b -> gb)  reduce_scatter(gc -> sc)  reduce_scatter(gb -> sb) ...
///   after:  wgrad(c -> gc)  reduce_scatter(gc -> sc)  wgrad(b -> gb)  reduce_scatter(gb -> sb)
///           undefine(-> gc)  wgrad(a -> ga)  reduce_scatter(ga -> sa)  undefine(-> gb)  ...
/// so a reduction may take as long as the backward of a unit, and at most two whole gradients exist
/// at a time, as long as a unit's backward is not cut in two (zero-bubble schedules,
/// `delay_last_wgrad`). Those behind which none begins are given back behind the norms: nobody
/// needs their memory, and compute would wait for all reductions in front of the first norm.
///
/// Counts moved tasks and buffers given back. Rounding does not change. Ensures: tasks that
/// conflict keep their order. The order of collectives of a group may change, in the same way on
/// all ranks whose programs are equal up to rank. Place: before streams and events are assigned.
/// Source: PyTorch Distributed (Li et al., VLDB 2020, section 3.2.3) and Megatron's
/// overlap_grad_reduce, as a rewrite of the program instead of hooks.
PassResult overlap_grad_reduce(Program program);

Pass overlap_grad_reduce_pass();

}  // namespace braid
