#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace braid {

/// Elements on the device.
struct DeviceElems {
  const std::byte* data = nullptr;
  int64_t num_elems = 0;
  DType dtype = DType::kF32;
};

/// Adds the hash of these elements (element_hash.h), of which the first has index `first_index`, to
/// `sum`, an aligned word of device memory, in stream order. Reads each element once, at the speed
/// of the memory.
void add_hash_on_device(const DeviceElems& elems, uint64_t first_index, uint64_t* sum,
                        cudaStream_t stream);

}  // namespace braid
