#pragma once

#include <cstdint>

namespace braid {

/// The last of `count` runs that begins at or before the row.
__device__ inline int run_of(const int32_t* begins, int count, int32_t row) {
  int low = 0;
  int high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begins[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace braid
