#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

TEST(ReduceSlice, CoversAllElementsInWholeLines) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const auto line = static_cast<int64_t>(64 / dtype_bytes(dtype));
    for (const int64_t num_elems : {0, 1, 31, 32, 33, 1009, 4096}) {
      for (const size_t members : {1, 2, 3, 8}) {
        int64_t next = 0;
        for (size_t i = 0; i < members; ++i) {
          const ReduceSlice slice = reduce_slice(num_elems, dtype, i, members);
          EXPECT_EQ(slice.begin, next);
          EXPECT_LE(slice.begin, slice.end);
          EXPECT_TRUE(slice.end % line == 0 || slice.end == num_elems);
          EXPECT_LE(slice.end - slice.begin, num_elems / static_cast<int64_t>(members) + 2 * line);
          next = slice.end;
        }
        EXPECT_EQ(next, num_elems);
      }
    }
  }
}

TEST(SumSlice, AddsInOrderAndTouchesOnlyItsSlice) {
  // (1e8 + 1) - 1e8 is 0 in fp32, 1e8 - 1e8 + 1 is 1: the order shows.
  std::vector<float> a(5, 1e8f);
  std::vector<float> b(5, 1.0f);
  std::vector<float> c(5, -1e8f);
  const std::vector<void*> buffers{a.data(), b.data(), c.data()};
  sum_slice(buffers, {1, 4}, DType::kF32);
  EXPECT_EQ(a, (std::vector<float>{1e8f, 0, 0, 0, 1e8f}));
  EXPECT_EQ(b, (std::vector<float>{1, 0, 0, 0, 1}));
  EXPECT_EQ(c, (std::vector<float>{-1e8f, 0, 0, 0, -1e8f}));
  std::vector<float> d(1, 1e8f);
  std::vector<float> e(1, -1e8f);
  std::vector<float> f(1, 1.0f);
  const std::vector<void*> other_order{d.data(), e.data(), f.data()};
  sum_slice(other_order, {0, 1}, DType::kF32);
  EXPECT_EQ(f[0], 1.0f);
}

TEST(SumSlice, RoundsBf16OnceAfterFp32Sums) {
  // 256 + 1 rounds back to 256 in bf16, so sums rounded after each addition would stay at 256.
  std::vector<std::vector<BFloat16>> data(9, std::vector<BFloat16>(3, BFloat16(1.0f)));
  data[0].assign(3, BFloat16(256.0f));
  std::vector<void*> buffers;
  for (auto& values : data) {
    buffers.push_back(values.data());
  }
  sum_slice(buffers, {0, 3}, DType::kBF16);
  for (const auto& values : data) {
    EXPECT_EQ(static_cast<float>(values[2]), 264.0f);
  }
}

TEST(SumSlice, SumsIntegersExactly) {
  std::vector<int64_t> a(2, (int64_t{1} << 60) + 1);
  std::vector<int64_t> b(2, 1);
  const std::vector<void*> buffers{a.data(), b.data()};
  sum_slice(buffers, {0, 2}, DType::kI64);
  EXPECT_EQ(b[1], (int64_t{1} << 60) + 2);
}

TEST(SumSlice, RefusesDtypesWithoutASum) {
  EXPECT_FALSE(can_sum(DType::kU8));
  EXPECT_THROW(sum_slice({}, {0, 1}, DType::kU8), InternalError);
}

}  // namespace
}  // namespace braid
