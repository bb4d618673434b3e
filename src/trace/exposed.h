#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/timeline.h"

namespace braid {

inline constexpr size_t kNumGroupKinds = 6;
inline constexpr size_t kNumPhases = 5;

/// The time in which communication of one kind ran on a rank (overlapping tasks counted once), and
/// the part of it in which the rank ran no compute task (exposed). The rest is hidden. If the
/// arrival of the last rank is known for each communication (TimelineTask::wait_ns), the exposed
/// time has two parts: one in which a communication of the kind moves bytes, and one in which all
/// of them wait for other ranks.
struct CommunicationTime {
  int64_t num_tasks = 0;
  int64_t bytes = 0;
  int64_t total_ns = 0;
  int64_t exposed_ns = 0;
  int64_t exposed_wait_ns = 0;  ///< the part of `exposed_ns` in which no bytes move

  int64_t hidden_ns() const { return total_ns - exposed_ns; }
  /// Adds the time of another rank.
  CommunicationTime& operator+=(const CommunicationTime& other);
  friend bool operator==(const CommunicationTime&, const CommunicationTime&) = default;
};

/// The parts of one rank's step. Compute tasks are tasks that do not communicate and are not on a
/// copy stream. compute_ns + communication.exposed_ns + copy_ns + bubble_ns == step_ns.
struct RankTimes {
  int rank = 0;
  int64_t step_ns = 0;     ///< from the start of the step to the end of its last task on any rank
  int64_t compute_ns = 0;  ///< at least one compute task runs
  CommunicationTime communication;
  int64_t copy_ns = 0;    ///< only copies run
  int64_t bubble_ns = 0;  ///< nothing runs: pipeline bubble, launch overhead, waiting for others
  std::array<CommunicationTime, kNumGroupKinds> by_group;  ///< by GroupKind; kinds may overlap
  std::array<CommunicationTime, kNumPhases> by_phase;      ///< by Phase of the label; phases may
                                                           ///< overlap
  std::vector<int64_t> busy_ns;                            ///< by stream
};

/// The times of every rank of one step. All ranks' clocks start at the same moment.
std::vector<RankTimes> analyze_timeline(const Timeline& timeline);

/// The times of one rank of a step that takes `step_ns`.
RankTimes analyze_rank(const RankTimeline& rank, int64_t step_ns);

/// Communication of one op at one place of the model, over all layers, microbatches and ranks of a
/// timeline.
struct PlaceCommunication {
  std::string name;  ///< "op site", without the layer: "all_gather mlp.fc1.input.column"
  CommunicationTime time;
};

/// The places that communicate, those with the most exposed time first, then the longest. Places
/// may run at the same time, so their sums may be more than the total. Throws InternalError as
/// `analyze_timeline`.
std::vector<PlaceCommunication> communication_by_place(const Timeline& timeline);

/// The hidden part for people: "98.1%"; "-" of no time.
std::string hidden_share(const CommunicationTime& time);

/// The parts of a step in one line; shares of the time of all ranks, without empty parts:
///   "step 20, 81.2 ms: compute 84.1%, exposed communication 10.3%, copies 0.1%, idle 5.5%"
std::string describe_times(const Timeline& timeline);

/// The latest end of a task, or of other device work, on any rank.
int64_t step_time_ns(const Timeline& timeline);

}  // namespace braid
