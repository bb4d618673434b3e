#include "comm/reduce.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

namespace braid {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kBlockElems = 2048;  // sums of one block stay in the first-level cache

template <class T, class Sum>
void sum_blocks(std::span<void* const> buffers, ReduceSlice slice) {
  std::array<Sum, kBlockElems> sums;
  for (int64_t at = slice.begin; at < slice.end; at += kBlockElems) {
    const int64_t count = std::min(kBlockElems, slice.end - at);
    const T* first = static_cast<const T*>(buffers[0]) + at;
    for (int64_t i = 0; i < count; ++i) {
      sums[static_cast<size_t>(i)] = static_cast<Sum>(first[i]);
    }
    for (void* buffer : buffers.subspan(1)) {
      const T* next = static_cast<const T*>(buffer) + at;
      for (int64_t i = 0; i < count; ++i) {
        sums[static_cast<size_t>(i)] += static_cast<Sum>(next[i]);
      }
    }
    for (void* buffer : buffers) {
      T* out = static_cast<T*>(buffer) + at;
      for (int64_t i = 0; i < count; ++i) {
        out[i] = static_cast<T>(sums[static_cast<size_t>(i)]);
      }
    }
  }
}

}  // namespace

ReduceSlice reduce_slice(int64_t num_elems, DType dtype, size_t index, size_t num_members) {
  const int64_t line_elems = kLineBytes / static_cast<int64_t>(dtype_bytes(dtype));
  const int64_t num_lines = (num_elems + line_elems - 1) / line_elems;
  const auto boundary = [&](size_t member) {
    return std::min(num_elems, num_lines * static_cast<int64_t>(member) /
                                   static_cast<int64_t>(num_members) * line_elems);
  };
  return {boundary(index), boundary(index + 1)};
}

bool can_sum(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kI64 || dtype == DType::kI32;
}

void sum_slice(std::span<void* const> buffers, ReduceSlice slice, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return sum_blocks<double, double>(buffers, slice);
    case DType::kF32:
      return sum_blocks<float, float>(buffers, slice);
    case DType::kBF16:
      return sum_blocks<BFloat16, float>(buffers, slice);
    case DType::kI64:
      return sum_blocks<int64_t, int64_t>(buffers, slice);
    case DType::kI32:
      return sum_blocks<int32_t, int32_t>(buffers, slice);
    default:
      throw_internal_error("cannot sum elements of dtype {}", dtype_name(dtype));
  }
}

}  // namespace braid
