#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/dtype.h"
#include "base/host_device.h"

namespace braid {

/// 8-bit floating point elements with `kMantissaBits` of fraction, as in "FP8 formats for deep
/// learning" (Micikevicius et al., 2022). Conversion from float rounds to nearest, ties to even,
/// and saturates: a larger magnitude, infinity too, becomes the largest one. NaN stays NaN. These
/// are the bits of the GPU's saturating conversions.
template <int kExponentBits, int kMantissaBits, uint8_t kMaxBits>
struct Float8 {
  uint8_t bits = 0;

  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;

  Float8() = default;
  explicit Float8(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint8_t>((word >> 24) & 0x80u);
    const uint32_t magnitude = word & 0x7FFF'FFFFu;
    bits = sign | (magnitude > 0x7F80'0000u ? uint8_t{0x7F} : rounded(magnitude));
  }

  explicit operator float() const {
    const uint32_t magnitude = bits & 0x7Fu;
    const uint32_t exponent = magnitude >> kMantissaBits;
    const uint32_t fraction = magnitude & ((1u << kMantissaBits) - 1);
    float value = 0;
    if (magnitude > kMaxBits) {
      value = std::bit_cast<float>(is_infinity(magnitude) ? 0x7F80'0000u : 0x7FC0'0000u);
    } else if (exponent == 0) {
      value = static_cast<float>(fraction) * power_of_two(1 - kBias - kMantissaBits);
    } else {
      value = std::bit_cast<float>(((exponent + 127 - kBias) << 23) |
                                   (fraction << (23 - kMantissaBits)));
    }
    return (bits & 0x80u) != 0 ? -value : value;
  }

  static float largest() { return static_cast<float>(from_bits(kMaxBits)); }
  static Float8 from_bits(uint8_t bits) {
    Float8 value;
    value.bits = bits;
    return value;
  }

 private:
  static constexpr float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  }
  /// Only a format whose largest number has a smaller exponent than all ones has an infinity.
  static constexpr bool is_infinity(uint32_t magnitude) {
    constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;
    return kMaxBits < kInfinity && magnitude == kInfinity;
  }

  /// `magnitude`: the bits of a float that is neither negative nor NaN.
  static uint8_t rounded(uint32_t magnitude) {
    constexpr int kDropped = 23 - kMantissaBits;
    constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + 1 - kBias) << 23;
    if (magnitude < kMinNormal) {
      // Adding 2^k rounds to a multiple of the smallest subnormal number, in the last bits.
      constexpr int kStep = 1 - kBias - kMantissaBits;
      const float shifted = std::bit_cast<float>(magnitude) + power_of_two(kStep + 23);
      return static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) & 0xFFu);
    }
    const uint32_t odd = (magnitude >> kDropped) & 1u;
    const uint32_t nearest = (magnitude + ((1u << (kDropped - 1)) - 1) + odd) >> kDropped;
    const uint32_t biased = nearest - (static_cast<uint32_t>(127 - kBias) << kMantissaBits);
    return static_cast<uint8_t>(std::min<uint32_t>(biased, kMaxBits));
  }
};

using Float8E4M3 = Float8<4, 3, 0x7E>;  ///< largest 448
using Float8E5M2 = Float8<5, 2, 0x7B>;  ///< largest 57,344
static_assert(sizeof(Float8E4M3) == 1 && sizeof(Float8E5M2) == 1);

template <>
constexpr DType dtype_of<Float8E4M3>() {
  return DType::kF8E4M3;
}
template <>
constexpr DType dtype_of<Float8E5M2>() {
  return DType::kF8E5M2;
}

/// A scale of FP8 elements: a power of two, or NaN if the elements are not finite.
///
/// `exponent_of` takes the bits of the largest magnitude of the elements, and returns the least
/// exponent e for which no element exceeds the largest number of the format times 2^e. All formats
/// here have the largest number 1.75 x 2^k, so this needs no division: the exponent of the
/// magnitude, plus one if its fraction is above 1.75. At least -126, so that 2^e and 2^-e are
/// normal floats; 0 if all elements are zero. Source: the rounded-up scales of NVIDIA's MXFP8
/// recipe (arXiv 2506.08027), here also for larger blocks.
struct Fp8Scale {
  static constexpr int kNotFinite = 128;  ///< the exponent of NaN
  static constexpr int kLeastExponent = -126;

  /// `magnitude_bits`: of a float without its sign; `largest_exponent`: k.
  BRAID_HOST_DEVICE static int exponent_of(uint32_t magnitude_bits, int largest_exponent) {
    if (magnitude_bits >= 0x7F80'0000u) {
      return kNotFinite;
    }
    if (magnitude_bits == 0) {
      return 0;
    }
    const auto rounded_up = static_cast<int>((magnitude_bits + 0x1F'FFFFu) >> 23);
    const int exponent = rounded_up - 127 - largest_exponent;
    return exponent < kLeastExponent ? kLeastExponent : exponent;
  }
  static int largest_exponent(DType format) { return format == DType::kF8E5M2 ? 15 : 8; }

  /// Bits of the float 2^exponent.
  BRAID_HOST_DEVICE static uint32_t float_bits(int exponent) {
    return exponent == kNotFinite ? 0x7FC0'0000u : static_cast<uint32_t>(exponent + 127) << 23;
  }
  static float to_float(int exponent) { return std::bit_cast<float>(float_bits(exponent)); }
  /// E8M0: 2^(bits - 127); 255 is NaN.
  BRAID_HOST_DEVICE static uint8_t to_e8m0(int exponent) {
    return static_cast<uint8_t>(exponent + 127);
  }
  static float from_e8m0(uint8_t bits) { return to_float(static_cast<int>(bits) - 127); }
};

}  // namespace braid
