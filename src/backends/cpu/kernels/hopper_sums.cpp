#include "backends/cpu/kernels/hopper_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace braid {
namespace {

constexpr int kFloatFractionBits = 23;
constexpr int kFloatLeastExponent = -126;
constexpr int kFloatBias = 127;

/// `magnitude` has `fraction_bits` below its hidden bit, which counts if `biased` is not 0.
SplitNumber split_bits(uint32_t magnitude, bool is_negative, int fraction_bits, int bias) {
  const auto biased = static_cast<int>(magnitude >> fraction_bits);
  const uint32_t fraction = magnitude & ((1u << fraction_bits) - 1);
  if (magnitude == 0) {
    return {};
  }
  const uint32_t hidden = biased == 0 ? 0 : 1u << fraction_bits;
  const auto significand =
      static_cast<int16_t>((hidden | fraction) << (SplitNumber::kFractionBits - fraction_bits));
  return {.significand = is_negative ? static_cast<int16_t>(-significand) : significand,
          .exponent = static_cast<int16_t>(std::max(biased, 1) - bias)};
}

SplitNumber split_special(float value) {
  const int sign = std::isnan(value) ? 0 : value < 0 ? -1 : 1;
  return {.significand = static_cast<int16_t>(sign), .exponent = SplitNumber::kNotFinite};
}

template <class Element>
SplitNumber split_element(Element value, int fraction_bits, int bias, int sign_bit) {
  const auto number = static_cast<float>(value);
  if (!std::isfinite(number)) {
    return split_special(number);
  }
  const uint32_t bits = value.bits;
  return split_bits(bits & ((1u << sign_bit) - 1), (bits >> sign_bit) != 0, fraction_bits, bias);
}

double value_of(const SplitNumber& number) {
  if (number.exponent != SplitNumber::kNotFinite) {
    return std::ldexp(number.significand, number.exponent - SplitNumber::kFractionBits);
  }
  return number.significand == 0 ? std::numeric_limits<double>::quiet_NaN()
                                 : number.significand * std::numeric_limits<double>::infinity();
}

/// A sum with NaN or infinity.
float special_sum(const SplitNumber* a, const SplitNumber* b, int64_t count, float c) {
  auto sum = static_cast<double>(c);
  for (int64_t i = 0; i < count; ++i) {
    sum += value_of(a[i]) * value_of(b[i]);
  }
  return std::isnan(sum) ? std::bit_cast<float>(0x7FFF'FFFFu) : static_cast<float>(sum);
}

/// The accumulator: significand * 2^(exponent - 23).
struct SplitFloat {
  int64_t significand = 0;
  int exponent = 2 * SplitNumber::kZero;
};

SplitFloat split_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto biased = static_cast<int>(bits >> kFloatFractionBits & 0xFFu);
  const int64_t fraction = bits & ((1u << kFloatFractionBits) - 1);
  const int64_t significand = fraction | int64_t{biased != 0} << kFloatFractionBits;
  if (significand == 0) {
    return {};
  }
  return {.significand = (bits >> 31) != 0 ? -significand : significand,
          .exponent = std::max(biased, 1) - kFloatBias};
}

double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

/// sum * 2^unit, toward zero among floats with `result_bits` of fraction. From 2^128 on: infinity.
float truncated_to_float(int64_t sum, int unit, int result_bits) {
  if (sum == 0) {
    return 0;
  }
  const auto magnitude = static_cast<uint64_t>(std::abs(sum));
  const int exponent =
      std::max(unit + static_cast<int>(std::bit_width(magnitude)) - 1, kFloatLeastExponent);
  const int dropped = std::max(0, exponent - result_bits - unit);
  const auto value =
      static_cast<float>(static_cast<double>(magnitude >> dropped << dropped) * power_of_two(unit));
  return sum < 0 ? -value : value;
}

/// value * 2^-shift toward zero, for magnitudes below 2^31.
int64_t shifted_right(int64_t value, int shift) {
  const int64_t magnitude = (value < 0 ? -value : value) >> std::min(shift, 31);
  return value < 0 ? -magnitude : magnitude;
}

/// With at most `core.depth` products. Terms are brought to the unit 2^(largest - term_bits) by
/// shifts to the right, after one to the left by `spare` bits.
float one_instruction(const TensorCore& core, const SplitNumber* a, const SplitNumber* b,
                      int64_t count, float c) {
  constexpr int kProductBits = 2 * SplitNumber::kFractionBits;
  const SplitFloat old = split_float(c);
  int largest = old.exponent;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, a[i].exponent + b[i].exponent);
  }
  if (largest > SplitNumber::kNotFinite / 2 || !std::isfinite(c)) {
    return special_sum(a, b, count, c);
  }
  const int spare = std::max(0, core.term_bits - kProductBits);
  const int shift = largest + kProductBits + spare - core.term_bits;
  const int spare_of_c = std::max(0, core.term_bits - kFloatFractionBits);
  int64_t sum =
      shifted_right(old.significand << spare_of_c,
                    largest - old.exponent + kFloatFractionBits + spare_of_c - core.term_bits);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t product = int64_t{a[i].significand} * b[i].significand;
    sum += shifted_right(product << spare, shift - a[i].exponent - b[i].exponent);
  }
  return truncated_to_float(sum, largest - core.term_bits, core.result_bits);
}

}  // namespace

SplitNumber split_number(Float8E4M3 value) {
  return split_element(value, 3, Float8E4M3::kBias, 7);
}

SplitNumber split_number(Float8E5M2 value) {
  return split_element(value, 2, Float8E5M2::kBias, 7);
}

SplitNumber split_number(BFloat16 value) {
  return split_element(value, 7, 127, 15);
}

float tensor_core_sum(const TensorCore& core, const SplitNumber* a, const SplitNumber* b,
                      int64_t count, float c) {
  for (int64_t i = 0; i < count; i += core.depth) {
    c = one_instruction(core, a + i, b + i, std::min(core.depth, count - i), c);
  }
  return c;
}

}  // namespace braid
