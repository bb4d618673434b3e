#pragma once

#include "backends/backend.h"

namespace braid {

/// CudaExecutor on NVIDIA's GPUs. In a build without CUDA it plans, and says that it has no GPU.
extern const Backend kCudaBackend;

}  // namespace braid
