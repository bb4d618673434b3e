#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace braid {

/// Whether `widen` takes this dtype: f32, bf16, f16.
bool is_weight_dtype(DType dtype);

/// Every `stride`-th element of `from`, beginning with `first`, as fp32, which all three dtypes fit
/// exactly. `from` need not be aligned.
struct ElementWalk {
  size_t first = 0;
  size_t stride = 1;
};
void widen(DType dtype, std::span<const std::byte> from, ElementWalk walk, std::span<float> to);

/// The value of an IEEE half.
float half_to_float(uint16_t bits);

}  // namespace braid
