#pragma once

#include <cstdint>
#include <optional>

#include "config/run_config.h"

namespace braid {

/// What is done around which training step of a run.
class StepCalendar {
 public:
  /// `config` resolved, which must outlive this. `stop_after_step`: as TrainerOptions.
  StepCalendar(const RunConfig& config, std::optional<int64_t> stop_after_step)
      : config_(config), stop_after_step_(stop_after_step) {}

  /// That this process may run; before its first one if nothing is left to do.
  int64_t last_step() const;
  /// Whether its timeline is recorded. Such a step runs alone.
  bool is_traced(int64_t step) const;
  /// Whether the held-out loss is measured behind it.
  bool is_evaluated(int64_t step) const;
  /// Whether a checkpoint is written behind it. `stops`: the run was asked to end with this step.
  bool is_saved(int64_t step, bool stops) const;
  /// Whether it must have ended before the next one begins: what is done behind a step finds it as
  /// the last one that has begun.
  bool is_boundary(int64_t step) const;

 private:
  const RunConfig& config_;
  std::optional<int64_t> stop_after_step_;
};

}  // namespace braid
