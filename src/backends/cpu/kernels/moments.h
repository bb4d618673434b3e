#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "backends/cpu/kernels/support.h"
#include "base/random_rounding.h"

/// What kernels that update weights share.
namespace braid {

/// Blocks of elements small enough that the new weights are still in the L1 cache when they are
/// rounded.
inline constexpr int64_t kUpdateBlock = 2048;

/// Moment: float or BFloat16, of which the second is rounded up or down at random.
template <class Moment>
void store_moment(Moment& moment, float value, uint32_t random) {
  if constexpr (std::is_same_v<Moment, BFloat16>) {
    moment.bits = bf16_rounded_randomly(std::bit_cast<uint32_t>(value), random);
  } else {
    moment = value;
  }
}

/// param[i] = weight[i] for elements [begin, end).
inline void round_to_param(const float* weight, BFloat16* param, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    store(param, i, weight[i]);
  }
}

}  // namespace braid
