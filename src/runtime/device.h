#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/registry/registry.h"
#include "config/run_config.h"

namespace braid {

/// The device of a run: the host, or GPUs of one backend.
struct Device {
  const Backend* backend = &host_backend();
  std::optional<DeviceInfo> gpu;  ///< none: the host; otherwise the GPU of the first rank of this
                                  ///< process
  std::string reason;             ///< why "auto" chose the CPU; otherwise empty
  std::vector<DeviceInfo> gpus = {};  ///< by rank, if this process has several ranks
  int64_t num_ranks = 1;              ///< of all processes
  int64_t ranks_per_gpu = 1;          ///< runtime.ranks_per_gpu, limited to the number of ranks

  /// Requires GPUs.
  const DeviceInfo& gpu_of(size_t rank) const { return gpus.empty() ? *gpu : gpus.at(rank); }
};

/// GPUs of this machine, and the backend that runs on them.
struct FoundGpus : FoundDevices {
  const Backend* backend = &gpu_backend();
};

/// Allowed values of runtime.device: "auto" and the names of backends.
std::vector<std::string> device_names();

/// The backend of runtime.device; null for "auto".
const Backend* named_backend(const RunConfig& config);

/// The GPUs of `only`, or of the first backend that has some; if there are none, the first
/// backend's reason. Call it before any other function of a backend's driver, which it prepares for
/// programs of `num_streams` streams.
FoundGpus find_gpus(size_t num_streams = kAnyNumberOfStreams, const Backend* only = nullptr);
/// The same, for the backend and the streams of this resolved run.
FoundGpus gpus_for(const RunConfig& config);

/// The device for runtime.device on a machine with these GPUs; "auto" is a GPU if one can run this
/// configuration. `local_process`: if each rank has a process, the index of this one on its host.
/// It uses the GPU with that number (divided by runtime.ranks_per_gpu), or the only one that it
/// sees. Throws ConfigError with the reason if "cuda" is impossible.
Device choose_device(const RunConfig& config, const FoundGpus& gpus,
                     std::optional<int> local_process = std::nullopt);

/// "device   cuda: NVIDIA H200, 140 GiB", for several ranks "device   cuda: 8 x ...", or "device
/// cuda: 8 ranks, 4 on each NVIDIA H200, 140 GiB"; newline included.
std::string describe_device(const Device& device);

/// This user's folder for files that braid can always regenerate; empty if there is no home.
std::string user_cache_folder();

}  // namespace braid
