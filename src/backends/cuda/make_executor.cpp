#include "backends/cuda/make_executor.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_executor.h"
#include "base/errors.h"

namespace braid {
namespace {

struct OwnContext {
  CudaContext context;

  OwnContext(int device, std::string cache_folder) : context(device, std::move(cache_folder)) {}
};

std::string why_no_devices(cudaError_t status) {
  int version = 0;  // stays 0 where there is no driver
  ignore_error(cudaDriverGetVersion(&version));
  ignore_error(cudaGetLastError());
  return version == 0 ? "there is no NVIDIA driver" : cudaGetErrorString(status);
}

/// The context is a base, so that it is there before the executor and after it.
class CudaRank : private OwnContext, public CudaExecutor {
 public:
  CudaRank(std::vector<Program> programs, MemoryPlan plan, const CudaRankOptions& options)
      : OwnContext(options.device, options.cache_folder),
        CudaExecutor(std::move(programs), std::move(plan), OwnContext::context,
                     {.mode = options.eager ? CudaStepMode::kEager : CudaStepMode::kGraph,
                      .poison_step_arena = options.poison_step_arena}) {}
};

}  // namespace

CudaGpus find_cuda_gpus() {
  CudaGpus found;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    found.why_none = why_no_devices(status);
    return found;
  }
  found.why_none = "there is no GPU";
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
      ignore_error(cudaGetLastError());
      continue;
    }
    if (has_kernels_for(properties.major, properties.minor)) {
      found.usable.push_back(
          {device, properties.name, static_cast<int64_t>(properties.totalGlobalMem)});
    } else {
      found.why_none = fmt::format("this build has no kernels for {} (compute capability {}.{})",
                                   properties.name, properties.major, properties.minor);
    }
  }
  if (!found.usable.empty()) {
    found.why_none.clear();
  }
  return found;
}

std::unique_ptr<Executor> make_cuda_rank(std::vector<Program> programs, MemoryPlan plan,
                                         const CudaRankOptions& options) {
  return std::make_unique<CudaRank>(std::move(programs), std::move(plan), options);
}

}  // namespace braid
