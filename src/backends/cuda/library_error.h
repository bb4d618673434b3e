#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include "backends/cuda/cuda_error.h"

/// BRAID_CUDA_CHECK for calls of cuBLAS and cuDNN. Slow to compile: include it only in source
/// files.
namespace braid {

/// Throw DeviceError "CALL: reason" unless the call succeeded.
void cuda_check(cublasStatus_t status, const char* call);
void cuda_check(cudnnStatus_t status, const char* call);

}  // namespace braid
