#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace braid {

/// Elements [begin, end) that member `index` of `num_members` sums for all: nearly equal runs of
/// whole cache lines, so that no two members write one line.
struct ReduceSlice {
  int64_t begin = 0;
  int64_t end = 0;
};
ReduceSlice reduce_slice(int64_t num_elems, DType dtype, size_t index, size_t num_members);

/// Whether `sum_slice` knows the dtype: f64, f32, bf16, i64, i32.
bool can_sum(DType dtype);

/// Writes buffers[0] + buffers[1] + ... , added in this order, to [begin, end) of every buffer.
/// Accumulates f32 and bf16 in fp32 (rounded once, at the end), the others in their own type. The
/// buffers do not overlap.
void sum_slice(std::span<void* const> buffers, ReduceSlice slice, DType dtype);

}  // namespace braid
