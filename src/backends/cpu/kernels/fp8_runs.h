#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "backends/cpu/kernels/fp8_tally.h"
#include "backends/cpu/kernels/support.h"
#include "base/float8.h"

namespace braid {

/// Where the FP8 copies of elements that share a scale go.
template <class Element>
struct Fp8Run {
  int64_t count = 0;
  Element* to = nullptr;
  float* scale = nullptr;
};

/// Rounds the elements value_at(0), value_at(1), ... of a run, and counts what they lose. `losses`:
/// null: not wanted. The definition, bit for bit, of copies with a scale for each run.
template <class Element, class ValueAt>
void round_run(const Fp8Run<Element>& run, Fp8Count* losses, const ValueAt& value_at) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < run.count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value_at(i)) & 0x7FFF'FFFFu);
  }
  const int exponent =
      Fp8Scale::exponent_of(largest, Fp8Scale::largest_exponent(dtype_of<Element>()));
  const bool is_finite = exponent != Fp8Scale::kNotFinite;
  const float factor = is_finite ? Fp8Scale::to_float(-exponent) : 0.0F;
  *run.scale = Fp8Scale::to_float(exponent);
  for (int64_t i = 0; i < run.count; ++i) {
    run.to[i] = is_finite ? Element(value_at(i) * factor) : Element::from_bits(0x7F);
    if (losses != nullptr) {
      losses->add(value_at(i), factor, run.to[i]);
    }
  }
}

/// Calls round(i, losses) for all i in [0, size), and adds what was counted to the tally; null: not
/// wanted.
template <class Round>
void round_all(WorkerPool& workers, int64_t* tally, int64_t size, int64_t grain,
               const Round& round) {
  run_pieces(workers, size, grain, [&](int, int64_t begin, int64_t end) {
    Fp8Count losses;
    for (int64_t i = begin; i < end; ++i) {
      round(i, tally == nullptr ? nullptr : &losses);
    }
    if (tally != nullptr) {
      losses.add_to(tally);
    }
  });
}

}  // namespace braid
