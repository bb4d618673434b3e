#include "data/random_state.h"

#include <bit>

namespace braid {

uint64_t RandomState::next_at_most(uint64_t max) {
  if (max == 0) {
    return 0;
  }
  const uint64_t mask = UINT64_MAX >> std::countl_zero(max);
  while (true) {
    uint64_t draw = next_u32();
    if (max > UINT32_MAX) {
      draw = (draw << 32) | next_u32();
    }
    draw &= mask;
    if (draw <= max) {
      return draw;
    }
  }
}

}  // namespace braid
