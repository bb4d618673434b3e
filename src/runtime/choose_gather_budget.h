#pragma once

#include <functional>
#include <string_view>

#include "config/run_config.h"
#include "plan/run_spec.h"
#include "runtime/memory_check.h"

namespace braid {

/// Whether braid chooses how much memory gathered weights may take: memory.gather_budget = "auto".
bool wants_auto_gather_budget(const RunConfig& config);

/// For a run with memory.gather_budget = "auto", sets the key to what gathered weights take without
/// a budget, and what `memory` has left then besides 1/128 of it; at most what all units take
/// together. The plan with it fits if the one without does. Any other `run` is returned unchanged.
/// `print` receives a line with the choice; may be null. Takes as long as planning two ranks per
/// pipeline stage two to six times. Throws ConfigError as `plan_run`.
RunSpec choose_gather_budget(const RunSpec& run, const RunMemory& memory,
                             const std::function<void(std::string_view)>& print = {});

}  // namespace braid
