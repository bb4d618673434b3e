#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/float8.h"
#include "ops/quantize.h"

namespace braid {

/// What elements of an FP8 copy lose, in one thread.
struct Fp8Count {
  uint32_t largest = 0;  ///< bits of the largest magnitude
  int64_t flushed = 0;
  int64_t saturated = 0;
  int64_t elems = 0;

  /// Adds an element and its copy. `factor`: the reciprocal of its scale; 0 if the block is not
  /// finite.
  template <class Element>
  void add(float x, float factor, Element copy) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFF'FFFFu;
    largest = std::max(largest, magnitude);
    flushed += magnitude != 0 && (copy.bits & 0x7Fu) == 0 ? 1 : 0;
    saturated += std::isfinite(x) && std::abs(x * factor) > Element::largest() ? 1 : 0;
    ++elems;
  }

  /// Threads may add to one tally at once.
  void add_to(int64_t* tally) const {
    std::atomic_ref most(tally[Fp8Tally::kLargest]);
    int64_t known = most.load(std::memory_order_relaxed);
    while (known < int64_t{largest} &&
           !most.compare_exchange_weak(known, int64_t{largest}, std::memory_order_relaxed)) {
    }
    const auto add = [&](int64_t at, int64_t count) {
      std::atomic_ref(tally[at]).fetch_add(count, std::memory_order_relaxed);
    };
    add(Fp8Tally::kFlushed, flushed);
    add(Fp8Tally::kSaturated, saturated);
    add(Fp8Tally::kElems, elems);
  }
};

}  // namespace braid
