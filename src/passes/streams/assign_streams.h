#pragma once

#include "passes/pass.h"

namespace braid {

/// Priorities of the streams that the pass adds. Compute has 0; higher numbers go first. If several
/// kinds of communication wait for the same link or the same multiprocessors, the one that compute
/// needs soonest should go first: keys and values are needed by the next attention step, rows by
/// the experts, weights and gradients a unit later. None is below compute, because a late transfer
/// delays other ranks too.
struct AssignStreamsOptions {
  int comm_priority = 1;      ///< of communication
  int exchange_priority = 2;  ///< of communication in groups of kind context and expert
  int copy_priority = 0;      ///< of the two copy streams
  // Communication that must not run beside compute, because its key in section [overlap] is off.
  bool gradients_block = false;   ///< of weights' gradients
  bool parameters_block = false;  ///< that gathers weights
  bool context_blocks = false;    ///< in groups of kind context
  bool experts_block = false;     ///< in groups of kind expert
};

/// Places communication on its own streams, so that it can run beside compute. There is one stream
/// per parallel dimension ("comm.data", ...; "comm" for communication without a group), and one
/// more for ranks of several hosts that exchange rows of experts ("comm.expert.rail"), which use
/// other links than those of one host. Two other communicators of one dimension never run at the
/// same time in this order; those of different dimensions should.
///   before: wgrad(...) compute wgrad  all_reduce(-> rw main_grads) {group=0} compute comm
///   after:  wgrad(...) compute wgrad  all_reduce(-> rw main_grads) {group=0} comm.data comm
///
/// Moves tasks of phase comm on a compute stream. All tasks of a group move or none, because a
/// group is one communicator, which takes one call at a time in one order. A group moves if all
/// operands of its tasks live for most of a step (no activations, gathered weights or gradients of
/// one microbatch). Groups of kind data, context and expert move with other operands too, if any of
/// their tasks can run beside compute: the next compute task does not depend on it. A task that
/// adds the result of a gradient communication to main gradients, or widens it, moves to the stream
/// of that communication.
///
/// Memory shared by two streams is planned from the order that events guarantee. So the pass adds
/// an `undefine` on the compute stream where a step buffer changes streams. If a moved task touches
/// the buffer first, but not last, the `undefine` stands in front of that task. If compute makes
/// the buffer and a moved task touches it last, the `undefine` stands behind that task. Earlier
/// passes may already have placed these where they cost no time.
///
/// Communication that must not run beside compute (AssignStreamsOptions) moves too, because its
/// group may have other communication. By an `await` before it it waits for compute, and compute
/// waits for it by an `await` behind it:
///   after:  wgrad(-> g) compute wgrad  await(g) comm.data comm
///           all_reduce(-> rw main_grads) {group=0} comm.data comm  await(main_grads) compute comm
///
/// Also moves tasks that write to the host to the stream "copy.out", and tasks that read from it to
/// "copy.in": a device copies both ways at once. Existing streams of kind comm and copy with these
/// names are used. Counts tasks that change streams. Rounding does not change. Place: after passes
/// that reorder (order inside a stream is program order), before events.
PassResult assign_streams(Program program, const AssignStreamsOptions& options);

Pass assign_streams_pass(const PipelineOptions& options);

}  // namespace braid
