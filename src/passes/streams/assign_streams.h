#pragma once

#include "passes/pass.h"

namespace braid {

/// Priorities of the streams that the pass makes; compute has 0, and more comes first. Where
/// several kinds of communication wait for the same link or the same multiprocessors, the one that
/// compute waits for soonest should win: keys and values are needed by the next attention step,
/// weights and gradients a unit later. None is below compute, because a late transfer delays other
/// ranks too.
struct AssignStreamsOptions {
  int comm_priority = 1;     ///< of communication
  int context_priority = 2;  ///< of communication in groups of kind context
  int copy_priority = 0;     ///< of the two copy streams
};

/// Places communication on streams of its own, so that it can run beside compute: one stream per
/// parallel dimension ("comm.data", ...; "comm" for what belongs to no group), because two
/// communicators of one dimension never run at the same time in this order, and those of different
/// dimensions should.
///   before: wgrad(...) compute wgrad  all_reduce(-> rw main_grads) {group=0} compute comm
///   after:  wgrad(...) compute wgrad  all_reduce(-> rw main_grads) {group=0} comm.data comm
/// Moved: tasks of phase comm on a compute stream, by group, because a group is one communicator,
/// which takes one call at a time in one order: all tasks of it or none. A group moves if all
/// operands of its tasks live for most of a step (no activations, gathered weights or gradients of
/// one microbatch). Groups of kind data and context move with other operands too, if any of their
/// tasks can run beside compute: if the compute task behind it does not need it. What adds the
/// result of a gradient communication to main gradients, or widens it, goes to its stream.
///
/// Memory that another stream touches is planned by what events guarantee. So a step buffer that a
/// moved task is the first to touch, but not the last, is handed over by an `undefine` on the
/// compute stream in front of the task, and one that compute has made and a moved task is the last
/// to touch comes back by one behind it, unless passes before have placed these where they cost no
/// time.
///
/// Also moved: tasks that write to the host, to the stream "copy.out", and those that read from it,
/// to "copy.in": a device copies both ways at once. Streams of kind comm and copy with these names
/// are used if there are any. Counts tasks that change streams. Rounding does not change. Place:
/// after all that reorders (order inside a stream is program order), before events.
PassResult assign_streams(Program program, const AssignStreamsOptions& options);

Pass assign_streams_pass(const PipelineOptions& options);

}  // namespace braid
