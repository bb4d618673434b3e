#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace braid {

/// Whether `widen` takes this dtype: f32, bf16, f16.
bool is_weight_dtype(DType dtype);

/// All elements of `from` as fp32, which all three dtypes fit exactly. `from` need not be aligned.
void widen(DType dtype, std::span<const std::byte> from, std::span<float> to);

/// The value of an IEEE half.
float half_to_float(uint16_t bits);

}  // namespace braid
