#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/exposed.h"
#include "trace/timeline.h"

namespace braid {

/// Communication of one kind, in nanoseconds: its total time, the part in which no compute task
/// ran, and the part of that in which it waited for other ranks.
struct CommunicationSummary {
  double total_ns = 0;
  double exposed_ns = 0;
  double exposed_wait_ns = 0;

  friend bool operator==(const CommunicationSummary&, const CommunicationSummary&) = default;
};

/// All tasks of one op on a rank.
struct OpSummary {
  std::string op;
  double num_tasks = 0;
  double busy_ns = 0;

  friend bool operator==(const OpSummary&, const OpSummary&) = default;
};

/// The parts of a step, as means over its ranks, for comparing two timelines of one program,
/// measured and simulated. Times are those of `analyze_timeline` and `break_down`: compute_ns +
/// communication.exposed_ns + copy_ns + idle_ns is step_ns.
struct StepSummary {
  double step_ns = 0;
  double compute_ns = 0;
  double copy_ns = 0;  ///< only copies ran
  double idle_ns = 0;
  CommunicationSummary communication;
  std::array<CommunicationSummary, kNumGroupKinds> by_group;  ///< by GroupKind
  std::array<CommunicationSummary, kNumPhases> by_phase;      ///< by Phase
  std::vector<OpSummary> ops;                                 ///< by name

  friend bool operator==(const StepSummary&, const StepSummary&) = default;
};

/// A traced step.
struct TracedStep {
  int64_t step = 0;
  StepSummary summary;

  friend bool operator==(const TracedStep&, const TracedStep&) = default;
};

/// Throws InternalError as `break_down`; zeros for a timeline without ranks.
StepSummary summarize_step(const Timeline& timeline);

/// The mean of steps; an op that a step lacks counts as 0 in it. All zeros if there are no steps.
StepSummary mean_step(std::span<const StepSummary> steps);

}  // namespace braid
