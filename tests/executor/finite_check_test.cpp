#include "backends/cpu/finite_check.h"

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

TEST(FindNonFiniteIntegers, KnowsThatIntegersAreFinite) {
  EXPECT_EQ(find_in(std::vector<int32_t>(5, -1)), std::nullopt);
  EXPECT_EQ(find_in(std::vector<int64_t>(5, -1)), std::nullopt);
}

}  // namespace
}  // namespace braid
