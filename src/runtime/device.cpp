#include "runtime/device.h"

#include <algorithm>

#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/validate.h"
#include "plan/choices.h"
#include "plan/most_streams.h"

namespace braid {
namespace {

/// "", or " with runtime.ranks_per_gpu = 4".
std::string describe_shares(int64_t ranks_per_gpu) {
  return ranks_per_gpu == 1 ? "" : fmt::format(" with runtime.ranks_per_gpu = {}", ranks_per_gpu);
}

/// Why the GPUs here cannot run these ranks, of which there are several; empty if they can.
std::string why_not_several(const RunConfig& config, const FoundGpus& gpus,
                            std::optional<int> local_process) {
  const auto num_gpus = static_cast<int64_t>(gpus.usable.size());
  const int64_t shares = config.runtime.ranks_per_gpu;
  const int64_t num_ranks = config.parallel.ranks;
  if (local_process && num_gpus > 1 && *local_process >= num_gpus * shares) {
    return fmt::format("this is process {} of its host, counted from 0, but the host has {} GPUs{}",
                       *local_process, num_gpus, describe_shares(shares));
  }
  if (!local_process && num_ranks > num_gpus * shares) {
    return fmt::format("parallel.ranks = {}{}, and there {} here", num_ranks,
                       describe_shares(shares),
                       num_gpus == 1 ? "is 1 GPU" : fmt::format("are {} GPUs", num_gpus));
  }
  return choice<EngineChoice>(config.overlap.comm_engine) == EngineChoice::kCopy
             ? ""
             : gpus.why_alone;  // which is about NCCL
}

/// Why no GPU here can run this; empty if one can.
std::string why_no_gpu_runs(const RunConfig& config, const FoundGpus& gpus,
                            std::optional<int> local_process) {
  if (gpus.usable.empty()) {
    return gpus.why_none;
  }
  if (choice<DType>(config.train.dtype) != DType::kBF16) {
    return fmt::format("train.dtype = \"{}\", and GPUs run \"bfloat16\" only", config.train.dtype);
  }
  if (config.parallel.ranks != 1 && emulates_links(config.links)) {
    return "section [links] emulates links, which only CPU ranks can have";
  }
  return config.parallel.ranks == 1 ? "" : why_not_several(config, gpus, local_process);
}

}  // namespace

FoundGpus find_gpus(size_t num_streams) {
  std::optional<FoundGpus> first;
  for (const Backend* const backend : backends()) {
    if (backend->is_host) {
      continue;
    }
    FoundGpus found{backend->find_devices(num_streams), backend};
    if (!found.usable.empty()) {
      return found;
    }
    first = first ? first : found;
  }
  return first.value();
}

FoundGpus gpus_for(const RunConfig& config) {
  return find_gpus(most_streams(config));
}

Device choose_device(const RunConfig& config, const FoundGpus& gpus,
                     std::optional<int> local_process) {
  const auto wanted = choice<DeviceChoice>(config.runtime.device);
  if (wanted == DeviceChoice::kCpu) {
    return {};
  }
  const std::string reason = why_no_gpu_runs(config, gpus, local_process);
  if (reason.empty()) {
    Device device{.backend = gpus.backend,
                  .gpu = gpus.usable.front(),
                  .reason = "",
                  .num_ranks = config.parallel.ranks,
                  .ranks_per_gpu = std::min(config.runtime.ranks_per_gpu, config.parallel.ranks)};
    const auto gpu_at = [&](int64_t local) -> const DeviceInfo& {
      return gpus.usable.at(static_cast<size_t>(local / device.ranks_per_gpu));
    };
    if (local_process) {
      device.gpu = gpus.usable.size() == 1 ? gpus.usable.front() : gpu_at(*local_process);
    } else if (config.parallel.ranks > 1) {
      for (int64_t rank = 0; rank < config.parallel.ranks; ++rank) {
        device.gpus.push_back(gpu_at(rank));
      }
    }
    return device;
  }
  if (wanted == DeviceChoice::kCuda) {
    throw_config_error(
        "runtime.device = \"cuda\": {}; change that, or set runtime.device = \"cpu\"", reason);
  }
  return {.reason = reason};
}

std::string describe_device(const Device& device) {
  if (device.gpu && device.ranks_per_gpu > 1) {
    return fmt::format("device   {}: {} ranks, {} on each {}, {}\n", device.backend->name,
                       device.num_ranks, device.ranks_per_gpu, device.gpu->name,
                       format_bytes(device.gpu->memory_bytes));
  }
  if (device.gpu) {
    return fmt::format("device   {}: {}{}, {}\n", device.backend->name,
                       device.num_ranks > 1 ? fmt::format("{} x ", device.num_ranks) : "",
                       device.gpu->name, format_bytes(device.gpu->memory_bytes));
  }
  return fmt::format("device   {}{}{}\n", device.backend->name, device.reason.empty() ? "" : ": ",
                     device.reason);
}

std::string user_cache_folder() {
  const EnvLookup lookup = process_environment();
  const std::string cache = lookup("XDG_CACHE_HOME").value_or("");
  const std::string home = lookup("HOME").value_or("");
  return !cache.empty() ? cache + "/braid" : !home.empty() ? home + "/.cache/braid" : "";
}

}  // namespace braid
