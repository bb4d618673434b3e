#pragma once

#include <optional>
#include <string>

#include "backends/cuda/make_executor.h"
#include "config/run_config.h"
#include "runtime/run_plan.h"

namespace braid {

/// Where a run happens.
struct Device {
  std::optional<CudaGpu> gpu;  ///< none: the CPU
  std::string reason;          ///< why "auto" is the CPU; else empty
};

/// What runtime.device means on a machine with these GPUs: "auto" is a GPU where there is one that
/// can run this configuration. Throws ConfigError with the reason if "cuda" cannot.
Device choose_device(const RunConfig& config, const CudaGpus& gpus);

/// "device   cuda: NVIDIA H200, 140 GiB", with the end of the line.
std::string describe_device(const Device& device);

/// Throws ConfigError with the needed bytes by class, the GPU's and the keys to change unless the
/// arenas of a rank fit.
void check_fits_gpu(const RunPlan& plan, const RunConfig& config, const CudaGpu& gpu);

/// Folder in which this user's braid keeps what it can always make again; empty if there is no
/// home.
std::string user_cache_folder();

}  // namespace braid
