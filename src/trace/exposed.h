#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/timeline.h"

namespace braid {

inline constexpr size_t kNumGroupKinds = 6;
inline constexpr size_t kNumPhases = 5;

/// How long communication of one kind ran on a rank (overlapping tasks counted once), and how much
/// of that time no compute task of the rank ran. The rest is hidden. Where it is known when the
/// last rank came to each (TimelineTask::wait_ns), the exposed time is in two parts: while one of
/// the kind moves bytes, and while all that run wait for other ranks.
struct CommunicationTime {
  int64_t num_tasks = 0;
  int64_t bytes = 0;
  int64_t total_ns = 0;
  int64_t exposed_ns = 0;
  int64_t exposed_wait_ns = 0;  ///< the part of `exposed_ns` in which nothing is moved

  int64_t hidden_ns() const { return total_ns - exposed_ns; }
  friend bool operator==(const CommunicationTime&, const CommunicationTime&) = default;
};

/// Where the time of one rank's step went. Compute tasks are those that neither communicate nor are
/// on a copy stream. compute_ns + communication.exposed_ns + copy_ns + bubble_ns == step_ns.
struct RankTimes {
  int rank = 0;
  int64_t step_ns = 0;     ///< from the start of the step to the end of its last task on any rank
  int64_t compute_ns = 0;  ///< some compute task runs
  CommunicationTime communication;
  int64_t copy_ns = 0;    ///< only copies run
  int64_t bubble_ns = 0;  ///< nothing runs: pipeline bubble, launch overhead, waiting for others
  std::array<CommunicationTime, kNumGroupKinds> by_group;  ///< by GroupKind; kinds may overlap
  std::array<CommunicationTime, kNumPhases> by_phase;      ///< by Phase of the label; as above
  std::vector<int64_t> busy_ns;                            ///< by stream
};

/// The times of every rank of one step. Ranks start their clocks together.
std::vector<RankTimes> analyze_timeline(const Timeline& timeline);

/// The times of one rank of a step that takes `step_ns`.
RankTimes analyze_rank(const RankTimeline& rank, int64_t step_ns);

/// Where a step went, for people; shares of the time of all ranks, parts that took none left out:
///   "step 20, 81.2 ms: compute 84.1%, exposed communication 10.3%, copies 0.1%, idle 5.5%"
std::string describe_times(const Timeline& timeline);

/// End of the last task, or of other work of a device, on any rank.
int64_t step_time_ns(const Timeline& timeline);

}  // namespace braid
