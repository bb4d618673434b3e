#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace braid {

/// Index of the first NaN or infinity among `num_elems` elements of any dtype on the device, after
/// the earlier work of `stream`; none if there is none.
/// `found` is one aligned word of device memory to work in. Synchronizes the stream. For debugging.
std::optional<int64_t> find_non_finite_on_device(const std::byte* data, int64_t num_elems,
                                                 DType dtype, uint64_t* found, cudaStream_t stream);

}  // namespace braid
