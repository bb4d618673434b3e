#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace braid {

/// The shuffles of NumPy's legacy RandomState(seed), bit for bit, so that sample orders equal those
/// of Megatron-LM. MT19937 with the standard initialiser (1812433253) on the low 32 bits of the
/// seed, which std::mt19937 is.
class RandomState {
 public:
  explicit RandomState(uint64_t seed) : engine_(static_cast<uint32_t>(seed)) {}

  uint32_t next_u32() { return static_cast<uint32_t>(engine_()); }

  /// Uniform in [0, max]: draws masked to the smallest 2^k - 1 that is at least `max`, redrawn
  /// until one is in range. One 32-bit draw each, or two (high word first) if `max` needs more than
  /// 32 bits. A `max` of 0 draws nothing.
  uint64_t next_at_most(uint64_t max);

  /// Fisher-Yates from the back, as RandomState.shuffle does for one-dimensional arrays.
  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;) {
      std::swap(values[i], values[next_at_most(i)]);
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace braid
