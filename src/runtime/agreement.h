#pragma once

#include <string>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "runtime/device.h"

namespace braid {

/// What the processes of a run must have alike before they begin. Called by all; throw ConfigError
/// in every process, with rank and both values, where one differs from the first.
void agree_on_configuration(ProcessGroup& processes, const RunConfig& config);
/// Whether they are on GPUs.
void agree_on_device(ProcessGroup& processes, const Device& device);

/// Tells the other processes why this one ends, with its rank.
void abort_with_rank(ProcessGroup& processes, const std::string& reason);

}  // namespace braid
