#include "backends/cuda/make_executor.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <fstream>
#include <utility>

#include "backends/cuda/architecture.h"
#include "backends/cuda/comm/communicators.h"
#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_executor.h"
#include "backends/cuda/hardware_queues.h"
#include "backends/cuda/step_tracer.h"
#include "base/env.h"
#include "base/errors.h"

namespace braid {
namespace {

struct OwnContext {
  CudaContext context;

  OwnContext(int device, std::string cache_folder) : context(device, std::move(cache_folder)) {}
};

std::string why_no_devices(cudaError_t status) {
  int version = 0;  // stays 0 without a driver
  ignore_error(cudaDriverGetVersion(&version));
  ignore_error(cudaGetLastError());
  return version == 0 ? "there is no NVIDIA driver" : cudaGetErrorString(status);
}

/// Version of the kernel's driver; if the system does not report it, the CUDA version that it
/// supports.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    // The first word of digits and points: "NVRM version: ... Kernel Module  580.159.04  Release".
    const bool is_version = word.find('.') != std::string::npos &&
                            word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) {
      return word;
    }
  }
  int version = 0;
  ignore_error(cudaDriverGetVersion(&version));
  return fmt::format("for CUDA {}.{}", version / 1000, version % 1000 / 10);
}

/// The context is a base class, so that it is constructed before the executor and destroyed after
/// it.
class CudaRank : private OwnContext, public CudaExecutor {
 public:
  CudaRank(std::vector<Program> programs, MemoryPlan plan, const RankOptions& options)
      : OwnContext(options.device, options.cache_folder),
        CudaExecutor(
            std::move(programs), std::move(plan), OwnContext::context,
            {.mode = options.eager ? CudaStepMode::kEager : CudaStepMode::kGraph,
             .poison_step_arena = options.poison_step_arena,
             .sync_each_task = options.sync_each_task,
             .make_kernel = options.repeatable ? make_cuda_kernel : make_fastest_cuda_kernel,
             .rendezvous = options.rendezvous,
             .nccl_windows = options.nccl_windows,
             .timeout_ns = options.timeout_ns,
             .emulated_peers = options.emulated_peers}) {}
};

}  // namespace

FoundDevices find_cuda_gpus(size_t num_streams) {
  ask_for_hardware_queues(num_streams);
  FoundDevices found;
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
    const int capability = 10 * properties.major + properties.minor;
    if (has_kernels_for(capability)) {
      if (found.usable.empty()) {
        use_gpu(device, capability);
      }
      found.usable.push_back(
          {device, properties.name, static_cast<int64_t>(properties.totalGlobalMem)});
    } else {
      found.why_none = fmt::format(
          "this build has kernels for compute capability {}, and {} has {}.{}",
          describe_architectures(), properties.name, properties.major, properties.minor);
    }
  }
  if (!found.usable.empty()) {
    found.why_none.clear();
  }
  if (found.usable.size() > 1) {  // otherwise NCCL is not needed, and loading it takes a while
    found.why_alone = why_no_nccl();
  }
  return found;
}

int64_t free_cuda_bytes(int device) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  BRAID_CUDA_CHECK(cudaSetDevice(device));
  BRAID_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<int64_t>(free_bytes);
}

std::string cuda_software() {
  int runtime = 0;
  ignore_error(cudaRuntimeGetVersion(&runtime));
  const size_t blas = cublasLtGetVersion();
  const size_t dnn = cudnnGetVersion();
  return fmt::format("driver {}, CUDA {}.{}, cuBLASLt {}.{}.{}, cuDNN {}.{}.{}", driver_version(),
                     runtime / 1000, runtime % 1000 / 10, blas / 10000, blas / 100 % 100,
                     blas % 100, dnn / 10000, dnn / 100 % 100, dnn % 100);
}

std::string describe_cuda_tracing() {
  const TraceMethod method = find_trace_method();
  return method.name == "CUPTI" ? method.detail : "events between tasks: " + method.detail;
}

std::string describe_cuda_communication() {
  return describe_nccl();
}

std::unique_ptr<Executor> make_cuda_rank(std::vector<Program> programs, MemoryPlan plan,
                                         const RankOptions& options) {
  if (options.shares_device) {
    require_own_queues(programs, process_environment()("CUDA_DEVICE_MAX_CONNECTIONS"));
  }
  return std::make_unique<CudaRank>(std::move(programs), std::move(plan), options);
}

}  // namespace braid
