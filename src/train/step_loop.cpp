#include "train/step_loop.h"

namespace braid {

int64_t run_steps(const StepLoop& loop) {
  int64_t begun = loop.first_step - 1;
  int64_t ended = begun;
  bool stops = false;
  bool is_boundary = false;
  const auto end_until = [&](int64_t step) {
    while (ended < step) {
      loop.end(++ended);
      stops = stops || loop.should_stop(ended);
      is_boundary = (loop.needs_boundary && loop.needs_boundary(ended)) || is_boundary;
    }
  };
  while (begun < loop.last_step && !stops) {
    loop.begin(++begun);
    is_boundary = begun == loop.last_step || loop.is_boundary(begun);
    end_until(is_boundary ? begun : begun - loop.max_in_flight + 1);
    if (stops || is_boundary) {
      end_until(begun);
    }
    if (is_boundary || stops) {
      ended = loop.at_boundary(begun, stops);
      stops = stops && ended == begun;
      begun = ended;
    }
  }
  return ended;
}

}  // namespace braid
