#include "base/dtype.h"

#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <limits>
#include <set>
#include <string_view>

namespace braid {
namespace {

constexpr std::array kAll = {DType::kF64,    DType::kF32,    DType::kBF16,   DType::kF16,
                             DType::kF8E4M3, DType::kF8E5M2, DType::kF8E8M0, DType::kI64,
                             DType::kI32,    DType::kU16,    DType::kU8};

TEST(DTypeTest, NamesAreReadBack) {
  std::set<std::string_view> names;
  for (const DType dtype : kAll) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_EQ(parse_safetensors_name(safetensors_name(dtype)), dtype);
    names.insert(dtype_name(dtype));
    names.insert(safetensors_name(dtype));
  }
  EXPECT_EQ(names.size(), 2 * kAll.size());
  EXPECT_EQ(parse_dtype("F32"), std::nullopt);
  EXPECT_EQ(parse_safetensors_name("f32"), std::nullopt);
}

TEST(DTypeTest, SafetensorsNamesAreThoseOfTheFormat) {
  EXPECT_EQ(safetensors_name(DType::kBF16), "BF16");
  EXPECT_EQ(safetensors_name(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(safetensors_name(DType::kF8E5M2), "F8_E5M2");
}

TEST(DTypeTest, NonFiniteBitsFitTheTypeAndMarkNoFiniteValue) {
  for (const DType dtype : kAll) {
    const uint64_t bits = non_finite_bits(dtype);
    EXPECT_EQ(bits != 0, is_floating_point(dtype)) << dtype_name(dtype);
    if (dtype != DType::kF8E8M0) {  // which has no sign
      EXPECT_EQ(bits >> (8 * dtype_bytes(dtype) - 1), 0u) << dtype_name(dtype);
    }
  }
  const uint64_t f32 = non_finite_bits(DType::kF32);
  const auto is_marked = [&](float value) { return (std::bit_cast<uint32_t>(value) & f32) == f32; };
  EXPECT_FALSE(is_marked(std::numeric_limits<float>::max()));
  EXPECT_TRUE(is_marked(std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(is_marked(std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace
}  // namespace braid
