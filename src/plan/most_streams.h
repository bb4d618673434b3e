#pragma once

#include <cstddef>

#include "config/run_config.h"

namespace braid {

/// How many streams the programs of a rank of this run can have at most, known before they are
/// made: a process asks for hardware queues before its first call of CUDA (hardware_queues.h).
/// `config` is resolved.
size_t most_streams(const RunConfig& config);

}  // namespace braid
