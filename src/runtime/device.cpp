#include "runtime/device.h"

#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/validate.h"

namespace braid {
namespace {

/// Why the GPUs here cannot run these ranks, of which there are several; empty if they can.
std::string why_not_several(const ParallelConfig& parallel, const CudaGpus& gpus,
                            std::optional<int> local_process) {
  const auto num_gpus = static_cast<int64_t>(gpus.usable.size());
  if (local_process && num_gpus > 1 && *local_process >= num_gpus) {
    return fmt::format("this is process {} of its host, counted from 0, and there are {} GPUs",
                       *local_process, num_gpus);
  }
  if (!local_process && parallel.ranks > num_gpus) {
    return fmt::format("parallel.ranks = {}, and there {} here", parallel.ranks,
                       num_gpus == 1 ? "is 1 GPU" : fmt::format("are {} GPUs", num_gpus));
  }
  return gpus.why_alone;
}

/// Why no GPU here can run this; empty if one can.
std::string why_no_gpu_runs(const RunConfig& config, const CudaGpus& gpus,
                            std::optional<int> local_process) {
  if (gpus.usable.empty()) {
    return gpus.why_none;
  }
  if (config.train.dtype != "bfloat16") {
    return fmt::format("train.dtype = \"{}\", and GPUs run \"bfloat16\" only", config.train.dtype);
  }
  if (config.parallel.ranks != 1 && emulates_links(config.links)) {
    return "section [links] emulates links, and only CPU ranks have such";
  }
  return config.parallel.ranks == 1 ? "" : why_not_several(config.parallel, gpus, local_process);
}

}  // namespace

Device choose_device(const RunConfig& config, const CudaGpus& gpus,
                     std::optional<int> local_process) {
  if (config.runtime.device == "cpu") {
    return {};
  }
  const std::string reason = why_no_gpu_runs(config, gpus, local_process);
  if (reason.empty()) {
    Device device{.gpu = gpus.usable.front(), .reason = "", .num_ranks = config.parallel.ranks};
    if (local_process) {
      device.gpu =
          gpus.usable.at(gpus.usable.size() == 1 ? 0 : static_cast<size_t>(*local_process));
    } else if (config.parallel.ranks > 1) {
      device.gpus.assign(gpus.usable.begin(), gpus.usable.begin() + config.parallel.ranks);
    }
    return device;
  }
  if (config.runtime.device == "cuda") {
    throw_config_error(
        "runtime.device = \"cuda\": {}; change that, or set runtime.device = \"cpu\"", reason);
  }
  return {.gpu = std::nullopt, .reason = reason};
}

std::string describe_device(const Device& device) {
  if (device.gpu) {
    return fmt::format("device   cuda: {}{}, {}\n",
                       device.num_ranks > 1 ? fmt::format("{} x ", device.num_ranks) : "",
                       device.gpu->name, format_bytes(device.gpu->memory_bytes));
  }
  return device.reason.empty() ? "device   cpu\n"
                               : fmt::format("device   cpu: {}\n", device.reason);
}

std::string user_cache_folder() {
  const EnvLookup lookup = process_environment();
  const std::string cache = lookup("XDG_CACHE_HOME").value_or("");
  const std::string home = lookup("HOME").value_or("");
  return !cache.empty() ? cache + "/braid" : !home.empty() ? home + "/.cache/braid" : "";
}

}  // namespace braid
