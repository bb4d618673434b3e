#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir/program.h"
#include "memory/max_live.h"
#include "memory/memory_plan.h"
#include "trace/timeline.h"

namespace braid {

/// Bytes of step buffers in use on the device during a step, by class, and the planned bytes.
struct MemoryCurve {
  int rank = 0;
  std::vector<int64_t> time_ns;  ///< ascending; each value holds until the next time
  std::array<std::vector<int64_t>, kNumBufferRoles> live_bytes;  ///< by BufferRole, then parallel
                                                                 ///< to time_ns
  int64_t high_bytes = 0;        ///< largest sum of live bytes at any time
  int64_t persistent_bytes = 0;  ///< of the plan, in addition to the step
  int64_t step_bytes = 0;        ///< of the plan: the bytes allocated for the step

  friend bool operator==(const MemoryCurve&, const MemoryCurve&) = default;
};

/// Live bytes of a program that ran as in `timeline`. A buffer is live from the start of the first
/// task that touches it to the end of the last one, in whole alignment units as in the plan. If
/// tasks ran in the order of their events, the sum never exceeds step_bytes. Returns at most
/// `max_points` points; of points that are merged, the one with most live bytes is kept, so that no
/// peak is lost. Throws InternalError if the timeline is of another program. O(n log n) in tasks.
MemoryCurve memory_curve(const Program& program, const RankTimeline& timeline,
                         const MemoryPlan& plan, size_t max_points);

}  // namespace braid
