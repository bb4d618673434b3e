#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "ops/quantize.h"

namespace braid {

/// A transposed FP8 factor, whose sizes are multiples of 128.
struct WidenColumnsArgs {
  const void* data = nullptr;  ///< [features, columns] f8e4m3 or f8e5m2
  const float* scales = nullptr;
  DType format = DType::kF8E4M3;
  bool square = false;  ///< scales are those of 128 x 128, otherwise of 1 x 128
  int64_t features = 0;
  int64_t columns = 0;
  /// The columns are those of rows of experts (ops/quantize_grouped.h). Null: of as many rows.
  const int32_t* offsets = nullptr;  ///< [num_experts + 1]
  int num_experts = 0;
  void* to = nullptr;  ///< [rows, features] bf16
};

/// Each element times its scale, rounded to bf16, as rows. Rows of no expert are not written.
void widen_columns(const WidenColumnsArgs& args, cudaStream_t stream);

}  // namespace braid
