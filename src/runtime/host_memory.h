#pragma once

#include <cstdint>

#include "runtime/run_plan.h"

namespace braid {

/// Bytes of memory that processes here may use together: the machine's, or less where a control
/// group (a container) is limited to less.
int64_t host_memory_bytes();

/// Bytes that training with this plan takes on one host: the arenas of all ranks, and the copy of
/// weights and optimizer state through which checkpoints are loaded and saved.
int64_t training_bytes(const RunPlan& plan);

/// Throws ConfigError with the needed bytes by class, the available ones and the keys to change
/// unless the plan fits. Memory that does not exist would otherwise be found out in the middle of
/// filling it, by the system's killing the process.
void check_fits_host(const RunPlan& plan, const RunConfig& config, int64_t available_bytes);

}  // namespace braid
