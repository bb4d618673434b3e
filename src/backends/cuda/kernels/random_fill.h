#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace braid {

/// Fills `data` [elems] of dtype bf16 or f32 with uniform values in [-1, 1), a function of seed and
/// index. For measurements: matrix products on zeros run faster than on real data.
void random_fill(void* data, int64_t elems, DType dtype, uint32_t seed, cudaStream_t stream);

}  // namespace braid
