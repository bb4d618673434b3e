#include "backends/cuda/cuda_context.h"

#include <utility>

#include "backends/cuda/algorithm_cache.h"
#include "backends/cuda/architecture.h"
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

int capability_of(int device) {
  return 10 * attribute_of(device, cudaDevAttrComputeCapabilityMajor) +
         attribute_of(device, cudaDevAttrComputeCapabilityMinor);
}

}  // namespace

CudaContext::CudaContext(int device, std::string cache_folder)
    : device_(device), algorithms_(std::make_unique<AlgorithmCache>(std::move(cache_folder))) {
  BRAID_CUDA_CHECK(cudaSetDevice(device_));
  use_gpu(device_, capability_of(device_));
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

void CudaContext::leave_sms(const LeftSms& left) {
  check(left.by_all >= 0 && left.by_long_blocks() < num_sms_, "{} of {} multiprocessors are left",
        left.by_long_blocks(), num_sms_);
  left_ = left;
}

}  // namespace braid
