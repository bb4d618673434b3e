#pragma once

#include <cstdint>
#include <functional>

namespace braid {

/// The training steps of a run, one after the other, of which some are in flight.
struct StepLoop {
  int64_t first_step = 1;
  int64_t last_step = 0;
  int max_in_flight = 1;  ///< steps that have begun and not ended
  std::function<void(int64_t step)> begin;
  /// Waits for the oldest step in flight, which this is.
  std::function<void(int64_t step)> end;
  /// Whether this step must have ended before the next one begins, for `at_boundary` or else.
  std::function<bool(int64_t step)> is_boundary;
  /// Asked after each end, until it says yes.
  std::function<bool(int64_t step)> should_stop;
  /// Called with no step in flight after the steps that are boundaries, the last one, and the one
  /// that the run stops after.
  std::function<void(int64_t step, bool stops)> at_boundary;
};

/// Begins a step as soon as fewer than `max_in_flight` are in flight and no boundary is in front of
/// it. Where the run is to stop, the steps in flight are its last ones. Returns the step that ended
/// last, which is before the first one if there is nothing to do. Where a call throws, steps may be
/// left in flight.
int64_t run_steps(const StepLoop& loop);

}  // namespace braid
