#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "trace/step_summary.h"

namespace braid {

/// What a cost model and the simulator say of a run that was measured.
struct Prediction {
  std::string cost;       ///< description of the cost model
  int64_t num_steps = 0;  ///< traced ones, of which `measured` is the mean
  StepSummary measured;
  StepSummary predicted;
  double measured_host_ns = 0;   ///< median of all steps, with the host's part; 0: not known
  double predicted_host_ns = 0;  ///< the same of the simulated step
};

/// Predicted over measured, less 1, in percent; 0 if nothing was measured.
double error_percent(double measured, double predicted);

/// The table of `braid report --cost`: step, compute, exposed communication by kind and by phase,
/// all communication, idle time, measured and predicted, each with its error in percent of what was
/// measured and of the step; then the ops whose errors are largest.
std::string describe_prediction_error(const Prediction& prediction);

/// The same as JSON:
///   {"cost", "num_steps", "measured": {...}, "predicted": {...}, "measured_host_ns",
///    "predicted_host_ns", "error_percent": {"step", "host", "compute", "exposed", "idle"}}
/// with the two in the form of traced_steps.h.
nlohmann::ordered_json prediction_json(const Prediction& prediction);

}  // namespace braid
