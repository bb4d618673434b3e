#pragma once

#include <cstdint>
#include <string>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "plan/run_plan.h"
#include "runtime/device.h"

namespace braid {

/// What the processes of a run must have alike before they begin. Called by all; throw ConfigError
/// in every process, with rank and both values, where one differs from the first.
void agree_on_configuration(ProcessGroup& processes, const RunConfig& config);
/// Whether they are on GPUs.
void agree_on_device(ProcessGroup& processes, const Device& device);

/// The programs that the processes have planned, a rank each, fit together: each shows what it asks
/// of others (`shown_calls`), and process 0 checks one rank of each kind against the others, which
/// it plans if `plan` lacks it. Throws ConfigError where a process has planned other calls than
/// process 0 would for it, with the first one, InternalError as `verify_kinds`; both in process 0
/// only. BRAID_VERIFY=0 there turns the checks off. `plan` as of `plan_for_rank`.
void agree_on_programs(ProcessGroup& processes, const RunPlan& plan);

/// Tells the other processes why this one ends, with its rank.
void abort_with_rank(ProcessGroup& processes, const std::string& reason);

}  // namespace braid
