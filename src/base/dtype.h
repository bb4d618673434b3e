#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace braid {

enum class DType : uint8_t {
  kF64,
  kF32,
  kBF16,
  kF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kU16,
  kU8
};

/// Bytes of one element.
size_t dtype_bytes(DType dtype);
/// Short name in program text and listings: "f32", "bf16", "i32", ...
std::string_view dtype_name(DType dtype);
/// Inverse of `dtype_name`.
std::optional<DType> parse_dtype(std::string_view name);
/// Name in safetensors headers: "F32", "F8_E4M3", ...
std::string_view safetensors_name(DType dtype);
/// Inverse of `safetensors_name`.
std::optional<DType> parse_safetensors_name(std::string_view name);
bool is_floating_point(DType dtype);
/// An element whose bits include all of these is NaN or infinity; 0 for types that have neither.
uint64_t non_finite_bits(DType dtype);

/// bfloat16 storage. Conversion from float rounds to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  BFloat16(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
    const bool is_nan = (word & 0x7FFFFFFFu) > 0x7F800000u;
    bits = static_cast<uint16_t>(is_nan ? (word >> 16) | 0x40u : rounded);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(BFloat16) == 2);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::kF64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kI64;
}

}  // namespace braid
