#pragma once

#include <cstdint>

namespace braid {

/// What a run has read of its training data after one of its steps.
struct DataCount {
  int64_t step = 0;
  int64_t samples = 0;
  int64_t tokens = 0;

  /// The same after a later step, or after an earlier one that read as much per step.
  DataCount after(int64_t later, int64_t samples_per_step, int64_t tokens_per_step) const {
    return {.step = later,
            .samples = samples + (later - step) * samples_per_step,
            .tokens = tokens + (later - step) * tokens_per_step};
  }
};

}  // namespace braid
