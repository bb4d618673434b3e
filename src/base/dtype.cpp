#include "base/dtype.h"

#include <array>

#include "base/errors.h"

namespace braid {
namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  size_t bytes;
  bool floating_point;
};

constexpr std::array kFacts = {
    DTypeFacts{DType::kF64, "f64", 8, true},       DTypeFacts{DType::kF32, "f32", 4, true},
    DTypeFacts{DType::kBF16, "bf16", 2, true},     DTypeFacts{DType::kF16, "f16", 2, true},
    DTypeFacts{DType::kF8E4M3, "f8e4m3", 1, true}, DTypeFacts{DType::kF8E5M2, "f8e5m2", 1, true},
    DTypeFacts{DType::kI64, "i64", 8, false},      DTypeFacts{DType::kI32, "i32", 4, false},
    DTypeFacts{DType::kU16, "u16", 2, false},      DTypeFacts{DType::kU8, "u8", 1, false},
};

const DTypeFacts& facts(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  check(index < kFacts.size() && kFacts[index].dtype == dtype, "dtype code {} is not known", index);
  return kFacts[index];
}

}  // namespace

size_t dtype_bytes(DType dtype) {
  return facts(dtype).bytes;
}

std::string_view dtype_name(DType dtype) {
  return facts(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeFacts& entry : kFacts) {
    if (entry.name == name) {
      return entry.dtype;
    }
  }
  return std::nullopt;
}

bool is_floating_point(DType dtype) {
  return facts(dtype).floating_point;
}

}  // namespace braid
