#pragma once

#include <type_traits>

#include "backends/cuda/kernels/device_vector.cuh"

// Kernels that make FP8 copies read bf16 weights, or f32 main weights as the bf16 weights that they
// would be.
namespace braid {

template <class T>
__device__ Bf16 as_bf16(T weight) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return weight;
  } else {
    return narrow<Bf16>(weight);
  }
}

template <class T, int V>
__device__ DeviceVector<Bf16, V> as_bf16(const DeviceVector<T, V>& weights) {
  DeviceVector<Bf16, V> vector;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    vector.elems[i] = as_bf16(weights.elems[i]);
  }
  return vector;
}

}  // namespace braid
