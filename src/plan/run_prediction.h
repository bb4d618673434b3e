#pragma once

#include <string>

#include "plan/simulated_run.h"
#include "report/prediction.h"
#include "report/report_html.h"
#include "report/traced_steps.h"

namespace braid {

/// Prediction beside measurement: the mean of the traced steps, and the simulated step. `run` must
/// have been simulated with SimOptions::starts_on_arrival, as executors trace. Throws InternalError
/// if no step was traced.
Prediction compare_with_measured(const SimulatedRun& run, const MeasuredSteps& measured);

/// The simulated step of all ranks as a page shows it, beside that of the run which was measured.
ReportInput predicted_step(const SimulatedRun& run, std::string title);

}  // namespace braid
