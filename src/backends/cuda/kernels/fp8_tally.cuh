#pragma once

#include <cstdint>

#include "ops/quantize.h"

namespace braid {

/// What elements of FP8 copies lose, counted by a thread; nothing unless kWatch. Maxima and sums of
/// integers: atomics give one result in any order.
template <bool kWatch>
struct Fp8Counter {
  uint32_t largest = 0;  // bits of the largest magnitude
  uint32_t counts = 0;   // flushed, and saturated times 2^16: a block has fewer than 2^16 elements

  /// An element, what was converted, and its copy. NaN is not saturated.
  __device__ void add(float x, float scaled, uint32_t copy, float most) {
    if constexpr (kWatch) {
      const bool is_zero = (__float_as_uint(x) & 0x7FFFFFFFu) == 0;
      counts += !is_zero && (copy & 0x7Fu) == 0 ? kFlushedOne : 0;
      counts += fabsf(scaled) > most && isfinite(x) ? kSaturatedOne : 0;
    }
  }

  /// Adds those of all threads of the block, which must all call this. `shared`: a word per warp.
  /// `elems`: of all blocks.
  __device__ void add_to(unsigned long long* tally, uint32_t* shared, int64_t elems) const {
    if constexpr (kWatch) {
      add_max(tally + Fp8Tally::kLargest, shared);
      add_counts(tally, shared);
      if (blockIdx.x == 0 && threadIdx.x == 0) {
        atomicAdd(tally + Fp8Tally::kElems, static_cast<unsigned long long>(elems));
      }
    }
  }

 private:
  static constexpr uint32_t kFlushedOne = 1;
  static constexpr uint32_t kSaturatedOne = 1u << 16;

  /// Calls combine(value of a lane of the first warp) with the value of its warp, or 0.
  template <class Combine>
  __device__ static void over_warps(uint32_t of_warp, uint32_t* shared, const Combine& combine) {
    __syncthreads();  // the block may still read what it shared before
    if (threadIdx.x % 32 == 0) {
      shared[threadIdx.x / 32] = of_warp;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      combine(threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : 0u);
    }
  }

  __device__ void add_max(unsigned long long* to, uint32_t* shared) const {
    over_warps(__reduce_max_sync(0xFFFFFFFFu, largest), shared, [&](uint32_t value) {
      const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, value);
      if (threadIdx.x == 0 && most > *static_cast<volatile unsigned long long*>(to)) {
        atomicMax(to, static_cast<unsigned long long>(most));
      }
    });
  }

  __device__ void add_counts(unsigned long long* tally, uint32_t* shared) const {
    over_warps(__reduce_add_sync(0xFFFFFFFFu, counts), shared, [&](uint32_t value) {
      const uint32_t sums = __reduce_add_sync(0xFFFFFFFFu, value);
      if (threadIdx.x == 0) {
        add_count(tally + Fp8Tally::kFlushed, sums % kSaturatedOne);
        add_count(tally + Fp8Tally::kSaturated, sums / kSaturatedOne);
      }
    });
  }

  __device__ static void add_count(unsigned long long* to, uint32_t count) {
    if (count > 0) {
      atomicAdd(to, static_cast<unsigned long long>(count));
    }
  }
};

}  // namespace braid
