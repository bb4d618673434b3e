#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace braid {

/// The elements [begin, end) that member `index` of `num_members` sums for all members: nearly
/// equal ranges of whole cache lines, so that no two members write to one line.
struct ReduceSlice {
  int64_t begin = 0;
  int64_t end = 0;
};
ReduceSlice reduce_slice(int64_t num_elems, DType dtype, size_t index, size_t num_members);

/// Whether this dtype can be summed: f64, f32, bf16, i64, i32.
bool can_sum(DType dtype);

/// sources[0] + sources[1] + ... , added in this order; or the largest of them.
struct Summation {
  std::span<const std::byte* const> sources;
  std::span<std::byte* const> targets;  ///< each receives the sums
  DType dtype = DType::kF32;
  int64_t begin = 0;  ///< elements [begin, begin + count) of each source
  int64_t count = 0;
  int64_t target_begin = 0;    ///< index of the first result in each target
  bool takes_largest = false;  ///< of i32 only
};

/// Accumulates f32 and bf16 in fp32 (rounded once, at the end), the others in their own type. An
/// element of a target may be the same element of a source; otherwise targets and sources do not
/// overlap.
void sum_elems(const Summation& summation);

}  // namespace braid
