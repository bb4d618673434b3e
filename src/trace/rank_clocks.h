#pragma once

#include <cstdint>

#include "trace/timeline.h"

namespace braid {

/// Facts about the clocks of the ranks of a timeline.
struct RankClocks {
  int num_unknown = 0;          ///< ranks whose RankTimeline::clock_origin_ns is not known
  int64_t largest_move_ns = 0;  ///< the largest correction of a rank, so that nothing is received
                                ///< before it was sent
  bool contradictory = false;   ///< no correction helps: clocks run at different rates, or records
                                ///< are wrong

  friend bool operator==(const RankClocks&, const RankClocks&) = default;
};

/// Puts all ranks on one clock. Its zero is the earliest moment in the timeline.
///
/// The first step uses the hosts' clocks: rank r is moved by its `clock_origin_ns` minus the
/// smallest one. If the origin of any rank is unknown, no rank is moved. Ranks of one host then
/// agree to the accuracy of its profiler (CUPTI interpolates between moments at which it has read
/// both the clock of a device and that of the host: about a microsecond).
///
/// The second step uses communication, also between hosts: no rank leaves an all-reduce, an
/// all-gather, a reduce-scatter or an all-to-all before the last rank arrives, and none receives
/// before the sender begins to send. Ranks that violate this are moved earlier, by the least time
/// that fixes it (difference constraints, by Bellman and Ford: Cormen et al., Introduction to
/// Algorithms, 24.4). Clocks without a violation stay. O(tasks + ranks * pairs of ranks that
/// communicate).
///
/// Adds a remark to each rank that the second step moved, with the amount. Kernels move with their
/// tasks.
RankClocks put_on_one_clock(Timeline& timeline);

}  // namespace braid
