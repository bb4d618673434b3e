#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace braid {

/// Index of the first NaN or infinity among `num_elems` elements on the device, after all earlier
/// work of `stream`; nullopt if there is none or the dtype is not f64, f32 or bf16. `found` is one
/// aligned word of device memory for scratch. Synchronizes the stream. For debugging.
std::optional<int64_t> find_non_finite_on_device(const std::byte* data, int64_t num_elems,
                                                 DType dtype, uint64_t* found, cudaStream_t stream);

}  // namespace braid
