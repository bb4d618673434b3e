#pragma once

#include "trace/timeline.h"

namespace braid {

/// Sets TimelineTask::wait_ns of all communication. A task that communicates starts when its own
/// rank has come to it; on a GPU the library's kernel then waits for the other ranks, and holds
/// multiprocessors meanwhile. Bytes move from when the last rank has come: the latest start among
/// the ranks in the timeline, so the wait is too short where others are not in it. A rank that had
/// ended by then (a small message that was sent before its receiver came) did not wait.
///
/// Requires ranks on one clock (rank_clocks.h); an error of clocks is an error of the waits.
void find_peer_waits(Timeline& timeline);

}  // namespace braid
