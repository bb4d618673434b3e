#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "trace/timeline.h"

namespace braid {

/// The part of a rank in a meeting.
struct CallAt {
  size_t rank = 0;  ///< index into Timeline::ranks
  size_t task = 0;  ///< index into RankTimeline::tasks
  /// Whether its time includes waiting for the other ranks: always, but where the work of a device
  /// was timed and is none of NCCL's kernels. Copies by copy engines move bytes from start to end,
  /// and may end before another rank has come.
  bool waits_inside = true;
};

/// Calls `visit` for each communication that is in the timelines of at least two of its ranks, with
/// all of these. O(n log n).
void for_each_meeting(const Timeline& timeline,
                      const std::function<void(std::span<const CallAt> calls)>& visit);

}  // namespace braid
