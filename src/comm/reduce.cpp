#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/errors.h"

namespace braid {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kBlockElems = 2048;  // sums of one block stay in the first-level cache

template <class T, class Sum, class Add = std::plus<Sum>>
void sum_blocks(const Summation& summation) {
  constexpr Add add;
  std::array<Sum, kBlockElems> sums;
  for (int64_t at = 0; at < summation.count; at += kBlockElems) {
    const int64_t count = std::min(kBlockElems, summation.count - at);
    const auto source = [&](size_t i) {
      return reinterpret_cast<const T*>(summation.sources[i]) + summation.begin + at;
    };
    const T* const first = source(0);
    for (int64_t i = 0; i < count; ++i) {
      sums[static_cast<size_t>(i)] = static_cast<Sum>(first[i]);
    }
    for (size_t member = 1; member < summation.sources.size(); ++member) {
      const T* const next = source(member);
      for (int64_t i = 0; i < count; ++i) {
        Sum& sum = sums[static_cast<size_t>(i)];
        sum = add(sum, static_cast<Sum>(next[i]));
      }
    }
    for (std::byte* const target : summation.targets) {
      T* const out = reinterpret_cast<T*>(target) + summation.target_begin + at;
      for (int64_t i = 0; i < count; ++i) {
        out[i] = static_cast<T>(sums[static_cast<size_t>(i)]);
      }
    }
  }
}

struct Larger {
  int32_t operator()(int32_t a, int32_t b) const { return std::max(a, b); }
};

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

void sum_elems(const Summation& summation) {
  if (summation.takes_largest) {
    check(summation.dtype == DType::kI32, "cannot take the largest elements of dtype {}",
          dtype_name(summation.dtype));
    return sum_blocks<int32_t, int32_t, Larger>(summation);
  }
  switch (summation.dtype) {
    case DType::kF64:
      return sum_blocks<double, double>(summation);
    case DType::kF32:
      return sum_blocks<float, float>(summation);
    case DType::kBF16:
      return sum_blocks<BFloat16, float>(summation);
    case DType::kI64:
      return sum_blocks<int64_t, int64_t>(summation);
    case DType::kI32:
      return sum_blocks<int32_t, int32_t>(summation);
    default:
      throw_internal_error("cannot sum elements of dtype {}", dtype_name(summation.dtype));
  }
}

}  // namespace braid
