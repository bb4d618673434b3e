#pragma once

#include <cstdint>
#include <cstdlib>

namespace braid {

/// The divisor of `value` nearest to `wanted`; the smaller of two that are equally near. For
/// messages that propose a valid setting.
inline int64_t nearest_divisor(int64_t value, int64_t wanted) {
  int64_t best = 1;
  for (int64_t divisor = 2; divisor <= value; ++divisor) {
    if (value % divisor == 0 && std::abs(divisor - wanted) < std::abs(best - wanted)) {
      best = divisor;
    }
  }
  return best;
}

}  // namespace braid
