#pragma once

#include <cstdint>

#include "trace/timeline.h"

namespace braid {

/// What is known of the clocks of the ranks of a timeline.
struct RankClocks {
  int num_unknown = 0;          ///< ranks whose RankTimeline::clock_origin_ns is not known
  int64_t largest_move_ns = 0;  ///< by which a rank was moved so that nothing is received before
                                ///< it was sent
  bool contradictory = false;  ///< no moves do: clocks run at different rates, or records are wrong

  friend bool operator==(const RankClocks&, const RankClocks&) = default;
};

/// Puts all ranks on one clock, on which the first moment that any rank knows is 0.
///
/// First by their hosts' clocks: rank r is moved by its `clock_origin_ns` less the smallest. If
/// that of some rank is not known, no rank is moved. Ranks of one host then agree to what its
/// profiler does (CUPTI interpolates between moments at which it has read both clocks of a device
/// and the host's: about a microsecond).
///
/// Then by what communication says, which also holds between hosts: no rank leaves an all-reduce,
/// an all-gather, a reduce-scatter or an all-to-all before the last has come to it, and none has
/// received before the sender has begun to send. Ranks for which that does not hold are moved, to
/// earlier, by the least that makes it hold (difference constraints, by Bellman and Ford: Cormen et
/// al., Introduction to Algorithms, 24.4). What holds already moves nothing. O(tasks + ranks *
/// pairs of ranks that communicate).
///
/// Adds a remark to each rank that was moved so, by how much. Kernels move with their tasks.
RankClocks put_on_one_clock(Timeline& timeline);

}  // namespace braid
