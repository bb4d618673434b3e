#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "trace/step_summary.h"

namespace braid {

/// A measured run and its prediction by a cost model and the simulator.
struct Prediction {
  std::string cost;       ///< description of the cost model
  int64_t num_steps = 0;  ///< traced steps; `measured` is their mean
  StepSummary measured;
  StepSummary predicted;
  double measured_host_ns = 0;   ///< median of all steps, including host time; 0: unknown
  double predicted_host_ns = 0;  ///< the same for the simulated step
};

/// (predicted / measured - 1) in percent; 0 if nothing was measured.
double error_percent(double measured, double predicted);

/// The table of `braid report --cost`: step, compute, exposed communication by kind and by phase,
/// all communication, idle time, measured and predicted, each with its error in percent of the
/// measured value and of the step; then the ops with the largest errors.
std::string describe_prediction_error(const Prediction& prediction);

/// The same as JSON:
///   {"cost", "num_steps", "measured": {...}, "predicted": {...}, "measured_host_ns",
///    "predicted_host_ns", "error_percent": {"step", "host", "compute", "exposed", "idle"}}
/// `measured` and `predicted` have the form of traced_steps.h.
nlohmann::ordered_json prediction_json(const Prediction& prediction);

}  // namespace braid
