#pragma once

#include "passes/pass.h"

namespace braid {

/// Moves each communication of gradients to directly after the last task that it depends on, so
/// that it can run under the rest of the backward. Several that become possible at the same place
/// keep their order.
///   before: wgrad(b -> rw gb)  wgrad(a -> rw ga)  all_reduce(-> rw ga)  all_reduce(-> rw gb)
///   after:  wgrad(b -> rw gb)  all_reduce(-> rw gb)  wgrad(a -> rw ga)  all_reduce(-> rw ga)
/// Gradient communication: phase comm, writing a buffer of role grad or main_grad. Counts moved
/// tasks. Rounding does not change. Ensures: tasks that conflict keep their order. The order of
/// collectives of a group may change, in the same way on all ranks whose programs are equal up to
/// rank. Place: before streams and events are assigned. Source: PyTorch Distributed (Li et al.,
/// VLDB 2020, section 3.2.3) and Megatron's overlap_grad_reduce, as a rewrite of the program
/// instead of hooks.
PassResult overlap_grad_reduce(Program program);

}  // namespace braid
