#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_error.h"
#include "base/errors.h"

namespace braid {

/// A function of the driver of type PFN_NAME_vVERSION (cudaTypedefs.h), looked up through the
/// runtime, so that we do not link against libcuda. `since`: the version in its type's name. Throws
/// DeviceError.
template <class Function>
Function driver_function(const char* name, unsigned since) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    ignore_error(cudaGetLastError());
    throw_device_error("the driver has no {} (CUDA {}.{} or newer is needed)", name, since / 1000,
                       since % 1000 / 10);
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace braid
