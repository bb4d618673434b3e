#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backends/executor.h"
#include "ir/program.h"

namespace braid {

/// What the host gives a rank for a training step and what it gets back (parallel/step_program.h
/// says what of it a rank has), for several steps in flight: each has a slot of host memory, so
/// that the inputs of the next step are written while the device may still take those of the one in
/// front.
class StepExchange {
 public:
  /// Empty where the rank's program has no such buffer.
  struct Values {
    std::span<int32_t> tokens;  ///< [M, rows]
    std::span<int32_t> labels;  ///< [M, rows]
    std::span<float> loss_scale;
    std::span<float> optimizer_scalars;  ///< [3]
    std::span<float> losses;             ///< [M]; a result, as those below
    std::span<float> grad_norm;
    std::span<float> grad_scale;
  };

  /// `program` is the training step of `executor`, which must outlive this. Throws DeviceError if
  /// there is no host memory for the slots.
  StepExchange(Executor& executor, const Program& program, int num_slots);

  /// Inputs may be written once the step that used the slot before has been waited for, and results
  /// be read from then on.
  const Values& slot(size_t index) const { return slots_.at(index); }
  /// In front of the launch of the step, and behind it: in the order of the steps.
  void enqueue_inputs(size_t slot);
  void enqueue_results(size_t slot);
  /// The same at once, in front of the launch and after the wait, with no step in flight.
  void write_inputs(size_t slot);
  void read_results(size_t slot);

 private:
  Executor& executor_;
  HostBlock block_;
  std::vector<Values> slots_;
};

}  // namespace braid
