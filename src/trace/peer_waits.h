#pragma once

#include "trace/timeline.h"

namespace braid {

/// Sets TimelineTask::wait_ns of all communication. A task that communicates starts when its own
/// rank reaches it; on a GPU the library's kernel then waits for the other ranks, and holds
/// multiprocessors meanwhile. Bytes move from the time when the last rank arrives: the latest start
/// among the ranks in the timeline. The wait is too short if other ranks are missing from it. A
/// rank that had already ended (a small message sent before its receiver arrived) did not wait.
///
/// Requires ranks on one clock (rank_clocks.h); errors of the clocks become errors of the waits.
void find_peer_waits(Timeline& timeline);

}  // namespace braid
