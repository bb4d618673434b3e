#include "runtime/device.h"

#include <algorithm>
#include <span>

#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "config/validate.h"
#include "plan/most_streams.h"

namespace braid {
namespace {

/// "", or " with runtime.ranks_per_gpu = 4".
std::string describe_shares(int64_t ranks_per_gpu) {
  return ranks_per_gpu == 1 ? "" : fmt::format(" with runtime.ranks_per_gpu = {}", ranks_per_gpu);
}

/// Why the GPUs cannot run these (several) ranks; empty if they can.
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
             : gpus.why_alone;  // which refers to NCCL
}

/// "\"bfloat16\", \"float32\"", as values of train.dtype.
std::string describe_dtypes(std::span<const DType> dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) {
    names.push_back(fmt::format("\"{}\"", choice_name(dtype)));
  }
  return join(names, ", ");
}

/// Why no GPU here can run this; empty if one can.
std::string why_no_gpu_runs(const RunConfig& config, const FoundGpus& gpus,
                            std::optional<int> local_process) {
  if (gpus.usable.empty()) {
    return gpus.why_none;
  }
  const std::span<const DType> dtypes = gpus.backend->dtypes;
  if (std::ranges::find(dtypes, choice<DType>(config.train.dtype)) == dtypes.end()) {
    return fmt::format("train.dtype = \"{}\", and GPUs run {} only", config.train.dtype,
                       describe_dtypes(dtypes));
  }
  if (config.parallel.ranks != 1 && emulates_links(config.links)) {
    return "section [links] emulates links, which only CPU ranks can have";
  }
  return config.parallel.ranks == 1 ? "" : why_not_several(config, gpus, local_process);
}

}  // namespace

std::vector<std::string> device_names() {
  return {kChoiceNames<DeviceChoice>.begin(), kChoiceNames<DeviceChoice>.end()};
}

const Backend* named_backend(const RunConfig& config) {
  const auto wanted = choice<DeviceChoice>(config.runtime.device);
  return wanted == DeviceChoice::kAuto ? nullptr : &backend_named(choice_name(wanted));
}

FoundGpus find_gpus(size_t num_streams, const Backend* only) {
  std::optional<FoundGpus> first;
  for (const Backend* const backend : backends()) {
    if (backend->is_host || (only != nullptr && backend != only)) {
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
  const Backend* const named = named_backend(config);
  return find_gpus(most_streams(config), named != nullptr && named->is_host ? nullptr : named);
}

Device choose_device(const RunConfig& config, const FoundGpus& gpus,
                     std::optional<int> local_process) {
  const Backend* const named = named_backend(config);
  if (named != nullptr && named->is_host) {
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
  if (named != nullptr) {
    throw_config_error("runtime.device = \"{}\": {}; change that, or set runtime.device = \"{}\"",
                       named->name, reason, host_backend().name);
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
