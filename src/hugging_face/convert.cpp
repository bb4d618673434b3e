#include "hugging_face/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/errors.h"

namespace braid {
namespace {

template <class T>
T load(std::span<const std::byte> from, size_t index) {
  T value;
  std::memcpy(&value, from.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T, class Convert>
void convert_all(std::span<const std::byte> from, std::span<float> to, const Convert& convert) {
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = convert(load<T>(from, i));
  }
}

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0) {  // zero, or below the smallest normal half: exact in fp32
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 0x1Fu ? 0xFFu : exponent + 112;  // bias 127 instead of 15
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

void widen(DType dtype, std::span<const std::byte> from, std::span<float> to) {
  check(to.size() * dtype_bytes(dtype) == from.size(), "{} elements are not {} bytes", to.size(),
        from.size());
  switch (dtype) {
    case DType::kF32:
      return convert_all<float>(from, to, [](float value) { return value; });
    case DType::kBF16:
      return convert_all<BFloat16>(from, to,
                                   [](BFloat16 value) { return static_cast<float>(value); });
    case DType::kF16:
      return convert_all<uint16_t>(from, to, half_to_float);
    default:
      throw_internal_error("no weights of dtype {}", dtype_name(dtype));
  }
}

}  // namespace braid
