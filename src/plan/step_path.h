#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/simulated_run.h"
#include "sim/price_changes.h"

namespace braid {

/// A cause of the step's time, and the time on the critical path that it has.
struct PathPart {
  std::string cause;  ///< "matrix products", "tensor communication", "optimizer", "host", ...
  int64_t ns = 0;
  /// By how much the step would be shorter if this took no time: less than `ns` where another path
  /// takes its place, more where it slowed others. Negative: not simulated.
  int64_t gain_ns = -1;
  std::vector<int64_t> stage_ns;  ///< by pipeline stage, of the rank that had the task

  friend bool operator==(const PathPart&, const PathPart&) = default;
};

/// The path over time: from the end of the one before to `end_ns`, mostly on this stage and for
/// this cause.
struct PathStretch {
  int64_t end_ns = 0;
  int stage = 0;
  std::string cause;

  friend bool operator==(const PathStretch&, const PathStretch&) = default;
};

/// What a step waits for, from its beginning to its end, through all ranks (sim/critical_path.h).
struct StepPath {
  int64_t step_ns = 0;
  std::vector<PathPart> parts;  ///< add up to `step_ns`; longest first
  int64_t num_tasks = 0;
  int64_t num_moves = 0;               ///< from a rank to another
  std::vector<PathStretch> stretches;  ///< at most kMaxPathStretches, with the host's part
};

inline constexpr int64_t kMaxPathStretches = 400;

/// Follows the critical path of a simulated step. Every nanosecond has one cause: kernels by kind
/// of op, the optimizer, launches (at most launch_ns of each kernel), copies to and from the host;
/// communication by kind of group, without its latency, which is a cause of its own; what kernels
/// and communication lose to tasks that run at the same time; the host's part.
StepPath step_path(const SimulatedRun& run);

/// The same, with the gains of causes that prices can be without: steps simulated with tasks of no
/// length.
StepPath step_path_with_gains(const SimulatedRun& run, int num_threads = 0);

/// A line, and a table of causes; those below 0.05% of the step are left out.
std::string describe_path(const StepPath& path);
nlohmann::ordered_json path_json(const StepPath& path);

}  // namespace braid
