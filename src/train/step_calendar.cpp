#include "train/step_calendar.h"

#include <algorithm>
#include <vector>

namespace braid {

int64_t StepCalendar::last_step() const {
  return std::min(config_.train.steps, stop_after_step_.value_or(config_.train.steps));
}

bool StepCalendar::is_traced(int64_t step) const {
  const std::vector<int64_t>& steps = config_.logging.trace_steps;
  return std::ranges::find(steps, step) != steps.end();
}

bool StepCalendar::is_evaluated(int64_t step) const {
  const int64_t interval = config_.eval.interval;
  return interval > 0 && (step == config_.train.steps || step % interval == 0);
}

bool StepCalendar::is_saved(int64_t step, bool stops) const {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  return (checkpoint.at_end && (stops || step >= last_step())) ||
         (checkpoint.interval > 0 && step % checkpoint.interval == 0);
}

bool StepCalendar::is_checked(int64_t step) const {
  const int64_t interval = config_.runtime.check_replicas;
  return interval > 0 && step % interval == 0;
}

bool StepCalendar::is_fp8_recorded(int64_t step) const {
  const int64_t interval = config_.train.fp8_watch;
  return interval > 0 && step % interval == 0;
}

bool StepCalendar::is_recorded(int64_t step, int64_t interval) const {
  return interval > 0 && (step % interval == 0 || step == 1 || step == config_.train.steps);
}

bool StepCalendar::are_loads_recorded(int64_t step) const {
  return is_recorded(step, config_.moe.watch) || are_counts_recorded(step);
}

bool StepCalendar::are_counts_recorded(int64_t step) const {
  return config_.moe.watch > 0 && is_recorded(step, config_.moe.watch_counts);
}

bool StepCalendar::is_boundary(int64_t step) const {
  return is_evaluated(step) || is_saved(step, false) || is_checked(step) || is_traced(step) ||
         is_traced(step + 1);
}

}  // namespace braid
