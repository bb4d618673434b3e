#include "backends/cuda/finite_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "backends/cuda/device_arena.h"
#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

template <class T>
class DeviceFiniteCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_gpu().empty()) {
      GTEST_SKIP() << why_no_gpu();
    }
  }
  std::optional<int64_t> find(const std::vector<T>& values, DType dtype) {
    const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(T));
    const DeviceArena data(size_bytes, "values");
    const DeviceArena word(256, "word");
    BRAID_CUDA_CHECK(cudaMemcpy(data.data(), values.data(), static_cast<size_t>(size_bytes),
                                cudaMemcpyHostToDevice));
    return find_non_finite_on_device(data.data(), static_cast<int64_t>(values.size()), dtype,
                                     reinterpret_cast<uint64_t*>(word.data()), nullptr);
  }
};

using Types = ::testing::Types<float, double, BFloat16, int32_t>;
TYPED_TEST_SUITE(DeviceFiniteCheck, Types);

TYPED_TEST(DeviceFiniteCheck, FindsTheFirstNanOrInfinity) {
  const auto infinity = std::numeric_limits<float>::infinity();
  for (const size_t size : {1u, 255u, 256u, 257u, 3'000'001u}) {
    std::vector<TypeParam> values(size, TypeParam(1));
    EXPECT_EQ(this->find(values, dtype_of<TypeParam>()), std::nullopt);
    if constexpr (!std::is_same_v<TypeParam, int32_t>) {
      for (const size_t position : {size - 1, size / 2, size_t{0}}) {
        values[position] = TypeParam(position % 2 == 0 ? infinity : std::nanf(""));
        EXPECT_EQ(this->find(values, dtype_of<TypeParam>()), static_cast<int64_t>(position));
      }
    }
  }
}

using DeviceFiniteCheckOfBytes = DeviceFiniteCheck<uint8_t>;

TEST_F(DeviceFiniteCheckOfBytes, FindsNanOfEightBitTypes) {
  std::vector<uint8_t> values(1001, 0x7E);  // 448 in E4M3, NaN in E5M2
  EXPECT_EQ(find(values, DType::kF8E4M3), std::nullopt);
  EXPECT_EQ(find(values, DType::kF8E5M2), 0);
  values[777] = 0xFF;
  EXPECT_EQ(find(values, DType::kF8E4M3), 777);
  EXPECT_EQ(find(values, DType::kU8), std::nullopt);
}

TYPED_TEST(DeviceFiniteCheck, FindsNothingInIntegersAndInNothing) {
  EXPECT_EQ(this->find({}, dtype_of<TypeParam>()), std::nullopt);
}

}  // namespace
}  // namespace braid
