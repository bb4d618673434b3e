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

template <class T>
std::byte* bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

/// Adds elements [begin, end) of all arrays in place.
template <class T>
void sum_in_place(std::vector<std::vector<T>>& arrays, int64_t begin, int64_t end) {
  std::vector<std::byte*> pointers;
  for (auto& array : arrays) {
    pointers.push_back(bytes(array));
  }
  const std::vector<const std::byte*> sources(pointers.begin(), pointers.end());
  sum_elems({.sources = sources,
             .targets = pointers,
             .dtype = dtype_of<T>(),
             .begin = begin,
             .count = end - begin,
             .target_begin = begin});
}

TEST(SumElems, AddsInOrderAndTouchesOnlyItsElements) {
  // (1e8 + 1) - 1e8 is 0 in fp32, 1e8 - 1e8 + 1 is 1: the order shows.
  std::vector<std::vector<float>> arrays{std::vector<float>(5, 1e8f), std::vector<float>(5, 1.0f),
                                         std::vector<float>(5, -1e8f)};
  sum_in_place(arrays, 1, 4);
  EXPECT_EQ(arrays[0], (std::vector<float>{1e8f, 0, 0, 0, 1e8f}));
  EXPECT_EQ(arrays[1], (std::vector<float>{1, 0, 0, 0, 1}));
  EXPECT_EQ(arrays[2], (std::vector<float>{-1e8f, 0, 0, 0, -1e8f}));
  std::vector<std::vector<float>> other_order{{1e8f}, {-1e8f}, {1.0f}};
  sum_in_place(other_order, 0, 1);
  EXPECT_EQ(other_order[2][0], 1.0f);
}

TEST(SumElems, WritesToOtherPlaces) {
  std::vector<int32_t> a{1, 2, 3, 4};
  std::vector<int32_t> b{10, 20, 30, 40};
  std::vector<int32_t> out(4, -1);
  const std::vector<const std::byte*> sources{bytes(a), bytes(b)};
  std::byte* const target = bytes(out);
  sum_elems({.sources = sources,
             .targets = {&target, 1},
             .dtype = DType::kI32,
             .begin = 2,
             .count = 2,
             .target_begin = 1});
  EXPECT_EQ(out, (std::vector<int32_t>{-1, 33, 44, -1}));
  EXPECT_EQ(a, (std::vector<int32_t>{1, 2, 3, 4}));
}

TEST(SumElems, RoundsBf16OnceAfterFp32Sums) {
  // 256 + 1 rounds back to 256 in bf16, so sums rounded after each addition would stay at 256.
  std::vector<std::vector<BFloat16>> arrays(9, std::vector<BFloat16>(3, BFloat16(1.0f)));
  arrays[0].assign(3, BFloat16(256.0f));
  sum_in_place(arrays, 0, 3);
  for (const auto& values : arrays) {
    EXPECT_EQ(static_cast<float>(values[2]), 264.0f);
  }
}

TEST(SumElems, SumsIntegersExactly) {
  std::vector<std::vector<int64_t>> arrays{std::vector<int64_t>(2, (int64_t{1} << 60) + 1),
                                           std::vector<int64_t>(2, 1)};
  sum_in_place(arrays, 0, 2);
  EXPECT_EQ(arrays[1][1], (int64_t{1} << 60) + 2);
}

TEST(SumElems, RefusesDtypesWithoutASum) {
  EXPECT_FALSE(can_sum(DType::kU8));
  EXPECT_THROW(sum_elems({.dtype = DType::kU8, .count = 1}), InternalError);
}

}  // namespace
}  // namespace braid
