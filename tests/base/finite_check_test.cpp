#include "base/finite_check.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace braid {
namespace {

template <class T>
std::optional<int64_t> find_in(const std::vector<T>& values) {
  return find_non_finite(reinterpret_cast<const std::byte*>(values.data()),
                         static_cast<int64_t>(values.size()), dtype_of<T>());
}

template <class T>
class FindNonFinite : public ::testing::Test {};
using FloatingPoint = ::testing::Types<double, float, BFloat16>;
TYPED_TEST_SUITE(FindNonFinite, FloatingPoint);

TYPED_TEST(FindNonFinite, FindsTheFirstNanOrInfinity) {
  std::vector<TypeParam> values(70, TypeParam(1.5f));
  values[3] = TypeParam(3e38f);  // large, but a number in each of the types
  values[4] = TypeParam(-0.0f);
  EXPECT_EQ(find_in(values), std::nullopt);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    values[69] = TypeParam(bad);
    EXPECT_EQ(find_in(values), 69);
    values[68] = TypeParam(bad);
    EXPECT_EQ(find_in(values), 68);
    values[68] = TypeParam(0.0f);
  }
  EXPECT_EQ(find_in(std::vector<TypeParam>{}), std::nullopt);
}

// Blocks of any length are looked at as a whole first.
TEST(FindNonFiniteBlocks, FindsEachElementOfManyBlocks) {
  std::vector<float> values(3000, 1.0f);
  for (const size_t at : {0u, 1023u, 1024u, 2047u, 2500u, 2999u}) {
    values[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(find_in(values), static_cast<int64_t>(at));
    values[at] = 1.0f;
  }
  EXPECT_EQ(find_in(values), std::nullopt);
}

TEST(FindNonFiniteBytes, ReadsTheBitsOfEightBitTypes) {
  const auto find = [](std::vector<uint8_t> bytes, DType dtype) {
    return find_non_finite(reinterpret_cast<const std::byte*>(bytes.data()),
                           static_cast<int64_t>(bytes.size()), dtype);
  };
  EXPECT_EQ(find({0x00, 0x7E, 0xFE, 0x80}, DType::kF8E4M3), std::nullopt);  // 448 is the largest
  EXPECT_EQ(find({0x00, 0x7F}, DType::kF8E4M3), 1);
  EXPECT_EQ(find({0x7E, 0xFF}, DType::kF8E4M3), 1);
  EXPECT_EQ(find({0x7B, 0xFB}, DType::kF8E5M2), std::nullopt);  // 57344 is the largest
  EXPECT_EQ(find({0x7B, 0x7C}, DType::kF8E5M2), 1);             // infinity
  EXPECT_EQ(find({0xFD, 0x7B}, DType::kF8E5M2), 0);             // NaN
  EXPECT_EQ(find({0xFF, 0x7F}, DType::kU8), std::nullopt);
}

TEST(FindNonFiniteIntegers, KnowsThatIntegersAreFinite) {
  EXPECT_EQ(find_in(std::vector<int32_t>(5, -1)), std::nullopt);
  EXPECT_EQ(find_in(std::vector<int64_t>(5, -1)), std::nullopt);
}

}  // namespace
}  // namespace braid
