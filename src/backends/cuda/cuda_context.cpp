#include "backends/cuda/cuda_context.h"

#include <utility>

#include "backends/cuda/algorithm_cache.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/library_error.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int kComputeCapabilityMajor =
    9;  // kernels are machine code of sm_90a, which only runs there
constexpr int kComputeCapabilityMinor = 0;

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  BRAID_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

void check_capability(int device) {
  const int major = attribute_of(device, cudaDevAttrComputeCapabilityMajor);
  const int minor = attribute_of(device, cudaDevAttrComputeCapabilityMinor);
  if (major != kComputeCapabilityMajor || minor != kComputeCapabilityMinor) {
    throw_device_error("GPU {} has compute capability {}.{}; this build is for {}.{} (H100, H200)",
                       device, major, minor, kComputeCapabilityMajor, kComputeCapabilityMinor);
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

}  // namespace braid
