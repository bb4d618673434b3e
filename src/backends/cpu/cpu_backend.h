#pragma once

#include "backends/backend.h"

namespace braid {

/// The reference meaning of programs: CpuExecutor.
extern const Backend kCpuBackend;

}  // namespace braid
