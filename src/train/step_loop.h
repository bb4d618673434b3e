#pragma once

#include <cstdint>
#include <functional>

namespace braid {

/// The training steps of a run in order, some of them in flight.
struct StepLoop {
  int64_t first_step = 1;
  int64_t last_step = 0;
  int max_in_flight = 1;  ///< limit of steps that have begun and not ended
  std::function<void(int64_t step)> begin;
  /// Waits for the oldest step in flight, which is `step`.
  std::function<void(int64_t step)> end;
  /// Whether this step must end before the next one begins, for `at_boundary` or another reason.
  std::function<bool(int64_t step)> is_boundary;
  /// Called after each end, until it returns true.
  std::function<bool(int64_t step)> should_stop;
  /// Called after each end: whether the steps in flight are to end before the next one begins, the
  /// last of them as a boundary step. Empty: never.
  std::function<bool(int64_t step)> needs_boundary = {};
  /// Called with no step in flight after boundary steps, the last step, and the step after which
  /// the run stops. Returns the step after which the loop goes on: this one, or an earlier one to
  /// which the state has gone back. Going back cancels a stop, which may be requested again.
  std::function<int64_t(int64_t step, bool stops)> at_boundary;
};

/// Begins a step as soon as fewer than `max_in_flight` are in flight and no boundary precedes it.
/// If the run is to stop, the steps in flight are its last ones. Returns the step that ended last;
/// this is less than the first one if there is nothing to do. If a call throws, steps may remain in
/// flight.
int64_t run_steps(const StepLoop& loop);

}  // namespace braid
