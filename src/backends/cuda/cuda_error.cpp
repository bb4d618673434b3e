#include "backends/cuda/cuda_error.h"

#include "backends/cuda/library_error.h"
#include "base/errors.h"

namespace braid {

void cuda_check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw_device_error("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
  }
}

void cuda_check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw_device_error("{}: {} ({})", call, cublasLtGetStatusString(status),
                       cublasLtGetStatusName(status));
  }
}

void cuda_check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw_device_error("{}: {}", call, cudnnGetErrorString(status));
  }
}

}  // namespace braid
