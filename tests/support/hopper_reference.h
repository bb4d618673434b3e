#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "backends/cpu/kernels/hopper_sums.h"

/// What tensor cores of Hopper compute, from the definition in hopper_sums.h: exact products in
/// double precision, and sums of integers in units of the last bit.
namespace braid {

/// The exponent of subnormal numbers of the format.
inline int least_exponent_of(DType format) {
  return format == DType::kF8E4M3 ? -6 : format == DType::kF8E5M2 ? -14 : -126;
}

/// Finite numbers of one format.
struct ReferenceRow {
  std::vector<double> values;
  int least_exponent = 0;

  int exponent(size_t i) const { return std::max(std::ilogb(values[i]), least_exponent); }
};

/// value / 2^unit toward zero.
inline int64_t whole_units(double value, int unit) {
  return static_cast<int64_t>(std::ldexp(value, -unit));
}

/// One instruction: c and products [begin, end).
inline float instruction_reference(const TensorCore& core, const ReferenceRow& a,
                                   const ReferenceRow& b, size_t begin, size_t end, float c) {
  const auto wide_c = static_cast<double>(c);
  int largest = c == 0 ? -1000 : std::max(std::ilogb(wide_c), -126);
  for (size_t i = begin; i < end; ++i) {
    if (a.values[i] * b.values[i] != 0) {
      largest = std::max(largest, a.exponent(i) + b.exponent(i));
    }
  }
  const int unit = largest - core.term_bits;
  int64_t sum = whole_units(wide_c, unit);
  for (size_t i = begin; i < end; ++i) {
    sum += whole_units(a.values[i] * b.values[i], unit);
  }
  const double exact = std::ldexp(static_cast<double>(sum), unit);
  const int last = sum == 0 ? 0 : std::max(std::ilogb(exact), -126) - core.result_bits;
  return static_cast<float>(std::ldexp(static_cast<double>(whole_units(exact, last)), last));
}

inline float tensor_core_reference(const TensorCore& core, const ReferenceRow& a,
                                   const ReferenceRow& b, float c) {
  const auto step = static_cast<size_t>(core.depth);
  for (size_t i = 0; i < a.values.size(); i += step) {
    c = instruction_reference(core, a, b, i, std::min(a.values.size(), i + step), c);
  }
  return c;
}

}  // namespace braid
