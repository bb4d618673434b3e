#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/simulated_run.h"

namespace braid {

/// A part of the step of the busiest rank, for which the others wait.
struct StepPart {
  std::string cause;  ///< "matrix products", "optimizer", "exposed tensor communication", "bubble"
  int64_t ns = 0;
  /// By how much the step would be shorter if this took no time: less than `ns` where something
  /// else takes its place, more where it slowed others. Negative: not simulated.
  int64_t gain_ns = -1;
};

/// A change that makes the step shorter, and the step simulated with it.
struct StepGain {
  std::string kind;  ///< "layout", "overlap", "hardware"
  std::string what;
  int64_t step_ns = 0;
  int64_t needed_bytes = 0;  ///< memory of the rank that needs most; 0: as before

  friend bool operator==(const StepGain&, const StepGain&) = default;
};

/// Why a step is not faster.
struct StepGains {
  int64_t step_ns = 0;               ///< with which gains are compared
  std::vector<StepPart> parts;       ///< add up to the tasks' part of the step; longest first
  std::vector<StepGain> gains;       ///< the best of each kind that is at least kLeastGain shorter
  std::vector<std::string> nothing;  ///< kinds of change of which none is
};

/// Gains below a thousandth of the step are not worth a line.
inline constexpr double kLeastGain = 0.001;

/// The busiest rank's step by cause: compute by family of ops, the optimizer, exposed communication
/// by kind of group, copies, pipeline bubble, other idle time. Tasks that run at once share their
/// time. Gains of causes are simulated with tasks of no length.
std::vector<StepPart> step_parts(const SimulatedRun& run, int num_threads = 0);

/// The resource of which twice as much makes the step shortest: tensor cores, memory, links inside
/// or between nodes. Its step, or one as long as before if none does.
StepGain best_hardware(const SimulatedRun& run, int num_threads = 0);

/// Lines "why" (parts) and "gain" (changes).
std::string describe_gains(const StepGains& gains);
nlohmann::ordered_json gains_json(const StepGains& gains);

}  // namespace braid
