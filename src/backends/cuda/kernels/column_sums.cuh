#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

// Second pass of column sums over rows: adds the partial sums of the first pass's blocks, in an
// order that depends only on their number.
namespace braid {

struct ColumnSumsArgs {
  const float* partials = nullptr;       // [num_partials, width]
  float* sums = nullptr;                 // [width]
  __nv_bfloat16* narrow_sums = nullptr;  // [width], instead of them: rounded once
  int64_t width = 0;
  int num_partials = 0;
  bool accumulate = false;  // true: add to sums; false: overwrite
};

/// Two sets of sums of one width; `second.sums` may be null.
void launch_column_sums(const ColumnSumsArgs& first, const ColumnSumsArgs& second,
                        cudaStream_t stream);

}  // namespace braid
