#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "report/report_html.h"
#include "trace/step_summary.h"

namespace braid {

/// Steps as JSON, times rounded to nanoseconds; kinds and phases without communication are left
/// out:
///   [{"step": 2, "step_ns", "compute_ns", "copy_ns", "idle_ns",
///     "communication": {"total_ns", "exposed_ns"},
///     "by_group": {"data": {"total_ns", "exposed_ns"}}, "by_phase": {"comm": {...}},
///     "ops": [{"op", "num_tasks", "busy_ns"}]}]
nlohmann::ordered_json traced_steps_json(std::span<const TracedStep> steps);
/// One such step without its number.
nlohmann::ordered_json summary_json(const StepSummary& summary);

/// The steps of a run.
struct MeasuredSteps {
  std::vector<TracedStep> traced;
  double median_step_ns = 0;  ///< of all steps, including host time; 0: unknown
};

/// `path` names the run in messages. Throws DataError if the run has no traced step, for example if
/// an older program wrote it, or if it is damaged.
MeasuredSteps measured_steps(const RunReport& run, const std::string& path);

}  // namespace braid
