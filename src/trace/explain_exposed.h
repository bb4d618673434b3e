#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace/exposed.h"
#include "trace/timeline.h"

namespace braid {

/// Why communication was exposed, as far as the timeline of its rank shows. If several reasons
/// apply, the first counts.
enum class ExposedReason : uint8_t {
  kAfterCompute,     ///< no compute task comes after it
  kBeforeOptimizer,  ///< only the optimizer comes after it
  kWarmup,           ///< of the pipeline: before the rank's first backward task
  kCooldown,         ///< of the pipeline: after the rank's last forward task
  kBeforeCompute,    ///< no compute task comes before it
  kComputeStream,    ///< it runs on the compute stream, which can run nothing else meanwhile
  kOtherWait,     ///< compute continues while it still runs, so compute waited for something else
  kComputeWaits,  ///< compute continues when it ends
};
inline constexpr size_t kNumExposedReasons = 8;

/// The name of a reason for machine-readable output, like "compute waits".
std::string_view exposed_reason_name(ExposedReason reason);

/// The compute tasks of one name and phase that ran next after communication of one kind that was
/// exposed on its own stream or because compute waited for it.
struct WaitingTask {
  std::string name;
  Phase phase = Phase::kForward;
  int64_t num_waits = 0;
  int64_t exposed_ns = 0;

  friend bool operator==(const WaitingTask&, const WaitingTask&) = default;
};

/// Communication of one kind on all ranks of a timeline.
struct ExplainedCommunication {
  GroupKind kind = GroupKind::kWorld;
  CommunicationTime time;                                  ///< sums over the ranks
  std::array<int64_t, kNumExposedReasons> by_reason_ns{};  ///< by ExposedReason; the sum is
                                                           ///< exposed_ns
  std::vector<WaitingTask> waiting;                        ///< longest first
};

/// The kinds that occur, in the order of GroupKind. Times are those of `analyze_timeline`. Throws
/// InternalError as it does. O(n log n).
std::vector<ExplainedCommunication> explain_exposed(const Timeline& timeline);

/// One line for people: at most three reasons, and the part of the exposed time that was spent
/// waiting for other ranks, in which no bytes moved:
///   tensor: 41.2 ms, 70.1% hidden; 8.10 ms exposed on the compute stream, where nothing can ...
std::string describe_exposed(const ExplainedCommunication& communication);

}  // namespace braid
