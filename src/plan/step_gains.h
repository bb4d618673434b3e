#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/simulated_run.h"
#include "plan/step_path.h"

namespace braid {

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
  StepPath path;                     ///< with the gains of its causes
  std::vector<StepGain> gains;       ///< the best of each kind that is at least kLeastGain shorter
  std::vector<std::string> nothing;  ///< kinds of change of which none is
};

/// Gains below a thousandth of the step are not worth a line.
inline constexpr double kLeastGain = 0.001;

/// The resource of which twice as much makes the step shortest: tensor cores, memory, links inside
/// or between nodes. Its step, or one as long as before if none does.
StepGain best_hardware(const SimulatedRun& run, int num_threads = 0);

/// Lines "gain" (changes); the path has its own (plan/step_path.h).
std::string describe_gains(const StepGains& gains);
nlohmann::ordered_json gains_json(const StepGains& gains);

}  // namespace braid
