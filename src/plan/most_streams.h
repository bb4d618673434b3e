#pragma once

#include <cstddef>

#include "config/run_config.h"

namespace braid {

/// Upper bound on the streams of a rank's programs, known before the programs are built. A process
/// needs it to request hardware queues before its first CUDA call (hardware_queues.h). Requires:
/// `config` is resolved.
size_t most_streams(const RunConfig& config);

}  // namespace braid
