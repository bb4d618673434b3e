#pragma once

#include "backends/backend.h"

namespace braid {

/// CudaExecutor on NVIDIA GPUs. A build without CUDA can plan for them, and reports no GPU.
extern const Backend kCudaBackend;

}  // namespace braid
