#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "ops/quantize.h"

namespace braid {

struct DequantizeArgs {
  const void* data = nullptr;    ///< [rows, depth] f8e4m3 or f8e5m2
  const void* scales = nullptr;  ///< as `layout` says
  DType format = DType::kF8E4M3;
  ScaleLayout layout;
  int64_t rows = 0;
  int64_t depth = 0;
  void* to = nullptr;  ///< [rows, depth] bf16
};

/// Each element times its scale, rounded to bf16.
void dequantize(const DequantizeArgs& args, cudaStream_t stream);

}  // namespace braid
