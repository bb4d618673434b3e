#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "report/records.h"

namespace braid {

/// The newest figures of a run in Prometheus's text format, which its node_exporter reads from a
/// file: braid_step, braid_loss (nats per token), ..., each with the label `run`. A loss that is
/// not finite is "NaN", "+Inf" or "-Inf". `evaluation`: the newest held-out loss. Source:
/// Prometheus, "Exposition formats", text-based format 0.0.4.
std::string prometheus_text(std::string_view run, const StepRecord& step,
                            const std::optional<EvalRecord>& evaluation);

}  // namespace braid
