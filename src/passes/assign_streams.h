#pragma once

#include "passes/pass.h"

namespace braid {

struct AssignStreamsOptions {
  /// Of the communication streams that the pass makes. Above the 0 of compute, because a late
  /// transfer delays other ranks too.
  int comm_priority = 1;
};

/// Places communication on streams of its own, so that it can run beside compute: one stream per
/// parallel dimension ("comm.data", "comm.tensor", ...; "comm" for what belongs to no group),
/// because two communicators of one dimension never run at the same time in this order, and those
/// of different dimensions should.
///   before: wgrad(...) compute wgrad  all_reduce(...) {group=0} compute comm
///   after:  wgrad(...) compute wgrad  all_reduce(...) {group=0} comm.data comm   group 0 has kind
///   data
/// Communication: phase comm. Other tasks stay where they are. Streams of kind comm with these
/// names are used if there are any. Counts tasks that change streams. Rounding does not change.
/// Place: after all that reorders (order inside a stream is program order), before events.
PassResult assign_streams(Program program, const AssignStreamsOptions& options);

}  // namespace braid
