#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace braid {

/// Fills `data` [elems] of dtype bf16, f32, f8e4m3 or f8e5m2 with uniform values in [-1, 1), a
/// function of seed and index; of f8e8m0 with scales of at most 1. For measurements: matrix
/// products on zeros run faster than on real data.
void random_fill(void* data, int64_t elems, DType dtype, uint32_t seed, cudaStream_t stream);

}  // namespace braid
