#pragma once

#include <cstdint>
#include <optional>

#include "config/run_config.h"

namespace braid {

/// Determines what happens before and after each training step of a run.
class StepCalendar {
 public:
  /// `config` must be resolved, and must outlive this object. `stop_after_step`: as TrainerOptions.
  StepCalendar(const RunConfig& config, std::optional<int64_t> stop_after_step)
      : config_(config), stop_after_step_(stop_after_step) {}

  /// The last step of this process; less than its first one if nothing is left to do.
  int64_t last_step() const;
  /// Whether its timeline is recorded. A traced step runs alone.
  bool is_traced(int64_t step) const;
  /// Whether the held-out loss is measured after it.
  bool is_evaluated(int64_t step) const;
  /// Whether a checkpoint is written after it. `stops`: the run was asked to end with this step.
  bool is_saved(int64_t step, bool stops) const;
  /// Whether the replicas of the state are compared after it, whatever else happens there.
  bool is_checked(int64_t step) const;
  /// Whether what FP8 copies lost in it is recorded.
  bool is_fp8_recorded(int64_t step) const;
  /// Whether the loads of experts in it are recorded, and with the rows of each expert.
  bool are_loads_recorded(int64_t step) const;
  bool are_counts_recorded(int64_t step) const;
  /// Whether it must end before the next one begins: work after a step requires that no later step
  /// has begun.
  bool is_boundary(int64_t step) const;

 private:
  bool is_recorded(int64_t step, int64_t interval) const;

  const RunConfig& config_;
  std::optional<int64_t> stop_after_step_;
};

}  // namespace braid
