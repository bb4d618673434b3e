#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace braid {

/// Index of the first NaN or infinity among `num_elems` elements of any dtype; none if there is
/// none. Looks at bits, so it also holds under -ffast-math.
std::optional<int64_t> find_non_finite(const std::byte* data, int64_t num_elems, DType dtype);

}  // namespace braid
