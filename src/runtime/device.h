#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/registry/registry.h"
#include "config/run_config.h"

namespace braid {

/// Where a run happens: on the host, or on GPUs of one backend.
struct Device {
  const Backend* backend = &host_backend();
  std::optional<DeviceInfo> gpu;  ///< none: the host; else that of the first rank of this process
  std::string reason;             ///< why "auto" is the CPU; else empty
  std::vector<DeviceInfo> gpus = {};  ///< by rank, if there are several in this process
  int64_t num_ranks = 1;              ///< of all processes
  int64_t ranks_per_gpu = 1;  ///< runtime.ranks_per_gpu, and never more than there are ranks

  /// Requires one.
  const DeviceInfo& gpu_of(size_t rank) const { return gpus.empty() ? *gpu : gpus.at(rank); }
};

/// GPUs of this machine, and the backend that runs on them.
struct FoundGpus : FoundDevices {
  const Backend* backend = &gpu_backend();
};

/// Names that runtime.device may have: "auto" and those of backends.
std::vector<std::string> device_names();

/// The backend that runtime.device names; null for "auto".
const Backend* named_backend(const RunConfig& config);

/// Those of `only`, or of the first backend that has some; else what the first one says why it has
/// none. To be called before any other function of a backend's driver, which it prepares for
/// programs of so many streams.
FoundGpus find_gpus(size_t num_streams = kAnyNumberOfStreams, const Backend* only = nullptr);
/// The same, for the backend and the streams of this run, which is resolved.
FoundGpus gpus_for(const RunConfig& config);

/// What runtime.device means on a machine with these GPUs: "auto" is a GPU where there is one that
/// can run this configuration. `local_process`: where each rank has a process, which of those of
/// this host this one is; its GPU is the one with that number (divided by runtime.ranks_per_gpu),
/// or the only one that it sees. Throws ConfigError with the reason if "cuda" cannot.
Device choose_device(const RunConfig& config, const FoundGpus& gpus,
                     std::optional<int> local_process = std::nullopt);

/// "device   cuda: NVIDIA H200, 140 GiB", of several ranks "device   cuda: 8 x ...", or "device
/// cuda: 8 ranks, 4 on each NVIDIA H200, 140 GiB", with the end of the line.
std::string describe_device(const Device& device);

/// Folder in which this user's braid keeps what it can always make again; empty if there is no
/// home.
std::string user_cache_folder();

}  // namespace braid
