#pragma once

#include <cstdint>
#include <string>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "plan/run_plan.h"
#include "runtime/device.h"

namespace braid {

/// Checks that the processes of a run agree before they begin. All processes call these functions;
/// if one differs from the first, all throw ConfigError with its rank and both values.
void agree_on_configuration(ProcessGroup& processes, const RunConfig& config);
/// Checks that all are on the same kind of device.
void agree_on_device(ProcessGroup& processes, const Device& device);

/// Checks that the programs that the processes have planned, one rank each, fit together. Each
/// process sends its communication calls (`shown_calls`); process 0 checks one rank of each kind
/// against the others, and plans it if `plan` lacks it. Throws ConfigError with the first differing
/// call if a process has planned other calls than process 0 would for it, InternalError as
/// `verify_kinds`; both only in process 0. BRAID_VERIFY=0 in process 0 turns the checks off. `plan`
/// as of `plan_for_rank`.
void agree_on_programs(ProcessGroup& processes, const RunPlan& plan);

/// Tells the other processes why this one ends, with its rank.
void abort_with_rank(ProcessGroup& processes, const std::string& reason);

}  // namespace braid
