#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Second pass of column sums over rows: adds up what each block of the first pass has summed, in an
// order that depends on the number of partial sums only.
namespace braid {

struct ColumnSumsArgs {
  const float* partials = nullptr;  // [num_partials, width]
  float* sums = nullptr;            // [width]
  int64_t width = 0;
  int num_partials = 0;
  bool accumulate = false;  // add to sums, else overwrite
};

/// Two sets of sums of one width; `second.sums` may be null.
void launch_column_sums(const ColumnSumsArgs& first, const ColumnSumsArgs& second,
                        cudaStream_t stream);

}  // namespace braid
