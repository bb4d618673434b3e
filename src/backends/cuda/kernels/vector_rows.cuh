#pragma once

#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"

// Launches of one block per row, whose threads take 16 bytes at a time.
namespace braid {

inline constexpr int kRowThreads = 256;

/// Rows of `width` elements begin at multiples of 16 bytes.
template <class T>
bool has_vectors(int64_t width, std::initializer_list<const void*> pointers) {
  return width % kVectorElems<T> == 0 && all_aligned(16, pointers);
}

template <class T>
unsigned threads_of_row(int64_t width) {
  const int64_t vectors = ceil_div(width, kVectorElems<T>);
  return static_cast<unsigned>(
      std::min<int64_t>(kRowThreads, ceil_div(vectors, kWarpSize) * kWarpSize));
}

}  // namespace braid
