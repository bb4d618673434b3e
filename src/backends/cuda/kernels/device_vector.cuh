#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

// Accesses of 16 bytes per thread, which device memory needs for its full rate, and element by
// element where a row does not start or end at a multiple of 16 bytes. Both assign the same
// elements to the same thread, so that results do not depend on alignment.
namespace braid {

using Bf16 = __nv_bfloat16;

/// Elements of T in 16 bytes.
template <class T>
inline constexpr int kVectorElems = 16 / static_cast<int>(sizeof(T));

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(Bf16 x) {
  return __bfloat162float(x);
}
__device__ inline double widen(double x) {
  return x;
}

/// Words that are only copied are not converted.
__device__ inline uint32_t widen(uint32_t x) {
  return x;
}

/// Rounds to nearest even.
template <class T, class W>
__device__ T narrow(W x) {
  if constexpr (sizeof(T) == 2) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <class T, int V>
struct DeviceVector {
  T elems[V];
};

template <int kBytes>
struct AccessWord;
template <>
struct AccessWord<16> {
  using Type = uint4;
};
template <>
struct AccessWord<8> {
  using Type = uint2;
};

/// Elements [0, min(V, valid)) of `from`, the others 0. With kAligned, `from` is a multiple of
/// min(16, V * sizeof(T)) bytes and valid >= V.
template <int V, bool kAligned, class T>
__device__ DeviceVector<T, V> load_vector(const T* __restrict__ from, int64_t valid) {
  DeviceVector<T, V> vector;
  if constexpr (kAligned) {
    constexpr int kBytes = V * static_cast<int>(sizeof(T));
    using Word = typename AccessWord<(kBytes < 16 ? kBytes : 16)>::Type;
    Word words[kBytes / sizeof(Word)];
#pragma unroll
    for (int i = 0; i < static_cast<int>(kBytes / sizeof(Word)); ++i) {
      words[i] = reinterpret_cast<const Word*>(from)[i];
    }
    memcpy(vector.elems, words, kBytes);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      vector.elems[i] = i < valid ? from[i] : T{};
    }
  }
  return vector;
}

/// The inverse of `load_vector`: writes elements [0, min(V, valid)).
template <bool kAligned, class T, int V>
__device__ void store_vector(T* to, const DeviceVector<T, V>& vector, int64_t valid) {
  if constexpr (kAligned) {
    constexpr int kBytes = V * static_cast<int>(sizeof(T));
    using Word = typename AccessWord<(kBytes < 16 ? kBytes : 16)>::Type;
    Word words[kBytes / sizeof(Word)];
    memcpy(words, vector.elems, kBytes);
#pragma unroll
    for (int i = 0; i < static_cast<int>(kBytes / sizeof(Word)); ++i) {
      reinterpret_cast<Word*>(to)[i] = words[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i < valid) {
        to[i] = vector.elems[i];
      }
    }
  }
}

}  // namespace braid
