#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace braid {

/// Index of the first NaN or infinity among `num_elems` elements; nullopt if there is none or the
/// dtype is not f64, f32 or bf16. Examines bits, so it also works with -ffast-math.
std::optional<int64_t> find_non_finite(const std::byte* data, int64_t num_elems, DType dtype);

}  // namespace braid
