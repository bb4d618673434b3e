#include "base/dtype.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

namespace braid {
namespace {

/// Properties of an element type; kernels handle the rest.
struct DTypeFacts {
  DType dtype;
  std::string_view name;
  std::string_view safetensors_name;
  size_t bytes;
  bool floating_point;
  uint64_t non_finite_bits;
};

// E4M3 has no infinity, and one NaN per sign: all other bits set. E8M0 has neither sign nor
// infinity, and one NaN.
constexpr std::array kFacts = {
    DTypeFacts{DType::kF64, "f64", "F64", 8, true, 0x7FF0'0000'0000'0000u},
    DTypeFacts{DType::kF32, "f32", "F32", 4, true, 0x7F80'0000u},
    DTypeFacts{DType::kBF16, "bf16", "BF16", 2, true, 0x7F80u},
    DTypeFacts{DType::kF16, "f16", "F16", 2, true, 0x7C00u},
    DTypeFacts{DType::kF8E4M3, "f8e4m3", "F8_E4M3", 1, true, 0x7Fu},
    DTypeFacts{DType::kF8E5M2, "f8e5m2", "F8_E5M2", 1, true, 0x7Cu},
    DTypeFacts{DType::kF8E8M0, "f8e8m0", "F8_E8M0", 1, true, 0xFFu},
    DTypeFacts{DType::kI64, "i64", "I64", 8, false, 0},
    DTypeFacts{DType::kI32, "i32", "I32", 4, false, 0},
    DTypeFacts{DType::kU16, "u16", "U16", 2, false, 0},
    DTypeFacts{DType::kU8, "u8", "U8", 1, false, 0},
};

const DTypeFacts& facts(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  check(index < kFacts.size() && kFacts[index].dtype == dtype, "dtype code {} is not known", index);
  return kFacts[index];
}

std::optional<DType> find_dtype(std::string_view DTypeFacts::*name, std::string_view value) {
  const auto found = std::ranges::find(kFacts, value, name);
  return found == kFacts.end() ? std::nullopt : std::optional(found->dtype);
}

}  // namespace

size_t dtype_bytes(DType dtype) {
  return facts(dtype).bytes;
}

std::string_view dtype_name(DType dtype) {
  return facts(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  return find_dtype(&DTypeFacts::name, name);
}

std::string_view safetensors_name(DType dtype) {
  return facts(dtype).safetensors_name;
}

std::optional<DType> parse_safetensors_name(std::string_view name) {
  return find_dtype(&DTypeFacts::safetensors_name, name);
}

bool is_floating_point(DType dtype) {
  return facts(dtype).floating_point;
}

uint64_t non_finite_bits(DType dtype) {
  return facts(dtype).non_finite_bits;
}

}  // namespace braid
