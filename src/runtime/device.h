#pragma once

#include <optional>
#include <string>

#include "backends/cuda/make_executor.h"
#include "config/run_config.h"

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

/// Folder in which this user's braid keeps what it can always make again; empty if there is no
/// home.
std::string user_cache_folder();

}  // namespace braid
