#pragma once

#include <array>
#include <cstdint>

#include "trace/exposed.h"
#include "trace/timeline.h"

namespace braid {

/// The idle time of a rank, by cause. A gap is attributed to the task that ends it: communication
/// begins when the last of its ranks arrives, so a gap before it is a wait for another rank.
struct IdleTimes {
  std::array<int64_t, kNumGroupKinds> before_communication_ns{};  ///< by GroupKind
  int64_t before_compute_ns = 0;                                  ///< or a copy: launch overhead
  int64_t at_end_ns = 0;                                          ///< after the rank's last task

  /// The same gaps by phase of the rank's pipeline: warmup until its first task of phase dgrad
  /// begins, cooldown after its last task of phase forward ends, steady between them. Communication
  /// and tasks without work do not mark these points. A gap belongs to the phase in which it
  /// begins.
  int64_t warmup_ns = 0;
  int64_t steady_ns = 0;
  int64_t cooldown_ns = 0;

  int64_t total_ns() const { return warmup_ns + steady_ns + cooldown_ns; }
  friend bool operator==(const IdleTimes&, const IdleTimes&) = default;
};

/// `step_ns` is the time of the whole step; the total is `RankTimes::bubble_ns`. If several tasks
/// end a gap at once, communication comes before compute, and groups come in the order of their
/// kinds. Throws nothing. O(n log n).
IdleTimes analyze_idle(const RankTimeline& rank, int64_t step_ns);

}  // namespace braid
