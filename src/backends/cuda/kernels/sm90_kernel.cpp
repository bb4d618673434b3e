#include "backends/cuda/kernels/sm90_kernel.h"

#include <cstdint>
#include <vector>

#include "backends/cuda/cuda_error.h"

namespace braid {

void Sm90Kernel::prepare(int device) {
  const std::lock_guard lock(mutex_);
  cudaLibrary_t* library = &library_;
  cudaError_t status = cudaSuccess;
  if (library_ == nullptr) {
    struct {
      cudaLibrary_t** library;
      cudaError_t* status;
    } args{&library, &status};
    load_library_(reinterpret_cast<void**>(&args));
    BRAID_CUDA_CHECK(status);
  }
  struct {
    cudaLibrary_t** library;
    int32_t* device;
    cudaError_t* status;
  } args{&library, &device, &status};
  prepare_device_(reinterpret_cast<void**>(&args));
  BRAID_CUDA_CHECK(status);
  load_code();
}

/// Querying a function's attributes loads it.
void Sm90Kernel::load_code() const {
  unsigned count = 0;
  BRAID_CUDA_CHECK(cudaLibraryGetKernelCount(&count, library_));
  std::vector<cudaKernel_t> kernels(count);
  BRAID_CUDA_CHECK(cudaLibraryEnumerateKernels(kernels.data(), count, library_));
  for (const cudaKernel_t kernel : kernels) {
    cudaFuncAttributes attributes;
    BRAID_CUDA_CHECK(cudaFuncGetAttributes(&attributes, static_cast<const void*>(kernel)));
  }
}

}  // namespace braid
