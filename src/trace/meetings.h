#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "trace/timeline.h"

namespace braid {

/// One rank's call in a communication.
struct CallAt {
  size_t rank = 0;  ///< index into Timeline::ranks
  size_t task = 0;  ///< index into RankTimeline::tasks
  /// Whether its time includes waiting for the other ranks. False only if the device's work was
  /// timed and is not an NCCL kernel: copies by copy engines move bytes from start to end, and may
  /// end before another rank arrives.
  bool waits_inside = true;
};

/// Calls `visit` for each communication that appears in the timelines of at least two of its ranks,
/// with the calls of all of these ranks. O(n log n).
void for_each_meeting(const Timeline& timeline,
                      const std::function<void(std::span<const CallAt> calls)>& visit);

}  // namespace braid
