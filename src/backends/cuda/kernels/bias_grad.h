#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace braid {

struct BiasGradArgs {
  const void* dy = nullptr;  ///< [rows, columns] bf16 or f32, 16-byte aligned
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int64_t columns = 0;
  bool accumulate = false;             ///< add to `db` instead of overwriting it
  float* db = nullptr;                 ///< [columns]
  __nv_bfloat16* narrow_db = nullptr;  ///< [columns], instead of db
  float* scratch = nullptr;            ///< bias_grad_scratch_bytes (scratch_sizes.h)
};

/// db (+)= sums of dy over its rows, in fp32; a narrow db is rounded once. The order of additions
/// depends only on the shape: bitwise repeatable on any device.
void bias_grad(const BiasGradArgs& args, cudaStream_t stream);

}  // namespace braid
