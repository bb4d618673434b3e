#pragma once

#include <string>

#include "plan/simulated_run.h"
#include "report/prediction.h"
#include "report/report_html.h"
#include "report/traced_steps.h"

namespace braid {

/// Compares the simulated step with the mean of the traced steps. Requires: `run` was simulated
/// with SimOptions::starts_on_arrival, because executors trace that way. Throws InternalError if no
/// step was traced.
Prediction compare_with_measured(const SimulatedRun& run, const MeasuredSteps& measured);

/// Report input for the simulated step of all ranks, to show next to that of the measured run.
ReportInput predicted_step(const SimulatedRun& run, std::string title);

}  // namespace braid
