#include "backends/cuda/cuda_context.h"

#include <utility>

#include "backends/cuda/algorithm_cache.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/library_error.h"
#include "base/errors.h"

namespace braid {
namespace {

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  BRAID_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

void check_capability(int device) {
  const int major = attribute_of(device, cudaDevAttrComputeCapabilityMajor);
  const int minor = attribute_of(device, cudaDevAttrComputeCapabilityMinor);
  if (!has_kernels_for(major, minor)) {
    throw_device_error(
        "GPU {} has compute capability {}.{}; this build has kernels for 9.0 (H100, H200) only",
        device, major, minor);
  }
}

}  // namespace

CudaContext::CudaContext(int device, std::string cache_folder)
    : device_(device), algorithms_(std::make_unique<AlgorithmCache>(std::move(cache_folder))) {
  BRAID_CUDA_CHECK(cudaSetDevice(device_));
  check_capability(device_);
  num_sms_ = attribute_of(device_, cudaDevAttrMultiProcessorCount);
  BRAID_CUDA_CHECK(cublasLtCreate(&cublas_lt_));
  try {
    BRAID_CUDA_CHECK(cudnnCreate(&cudnn_));
  } catch (...) {
    cublasLtDestroy(cublas_lt_);
    throw;
  }
}

CudaContext::~CudaContext() {
  cudnnDestroy(cudnn_);
  cublasLtDestroy(cublas_lt_);
}

void CudaContext::leave_sms(int count) {
  check(count >= 0 && count < num_sms_, "{} of {} multiprocessors are left", count, num_sms_);
  left_sms_ = count;
}

}  // namespace braid
