#pragma once

#include "passes/pass.h"

namespace braid {

/// Lets keys and values go on to the next context rank while attention to those that are here is
/// computed. Of one ring, where `step` is the attention to one rank's keys and values:
///   before: pack(-> kv0)  step(kv0)  ring_shift(kv0 -> kv1)  step(kv1)  ring_shift(kv1 -> kv2)
///           step(kv2)
///   after:  pack(-> kv0)  undefine(-> kv1)  ring_shift(kv0 -> kv1)  step(kv0)  undefine(-> kv0)
///           undefine(-> kv2)  ring_shift(kv1 -> kv2)  step(kv1)  undefine(-> kv1)  step(kv2)
/// A shift of what a shift has brought starts where that is first used, and one of what compute has
/// made (the gradients of keys and values, which follow a step behind in the backward) directly
/// behind that. An `undefine` in front of the first use of what a shift brings takes back what it
/// has sent, and one in front of the shift gives it the memory that it fills; so two keys and
/// values exist at a time, besides the own ones, however many ranks there are.
///
/// In the backward the first shift, or all-gather, of a layer starts early too, with the packing in
/// front of it: in front of the two matrix products before it (those of the output projection),
/// since what it sends is known since the forward. In the forward keys and values are made directly
/// in front of the attention: an all-gather of them has nothing to run beside. Nor has an
/// all-to-all, whose operands are what compute makes last: see split_exchange.h, and of the
/// backward delay_context_wgrad.h.
///
/// Candidates: tasks of phase comm on a compute stream, in a group of kind context, that alone
/// write a step buffer. Only the order is decided here; assign_streams takes them to a stream of
/// their own. Counts tasks that move and buffers that change hands. Rounding does not change.
/// Place: behind recompute, which may make again what is packed. Source: Liu et al., Ring
/// Attention, 2023; Transformer Engine's context-parallel attention.
PassResult context_ring(Program program);

Pass context_ring_pass();

}  // namespace braid
