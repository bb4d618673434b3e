#include "runtime/device.h"

#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/validate.h"

namespace braid {
namespace {

/// Why no GPU here can run this; empty if one can.
std::string why_no_gpu_runs(const RunConfig& config, const CudaGpus& gpus) {
  if (gpus.usable.empty()) {
    return gpus.why_none;
  }
  if (config.train.dtype != "bfloat16") {
    return fmt::format("train.dtype = \"{}\", and GPUs run \"bfloat16\" only", config.train.dtype);
  }
  if (config.parallel.ranks != 1 && emulates_links(config.links)) {
    return "section [links] emulates links, and only CPU ranks have such";
  }
  if (config.parallel.ranks != 1) {
    return fmt::format("parallel.ranks = {}, and this build runs 1 rank on GPUs",
                       config.parallel.ranks);
  }
  return "";
}

}  // namespace

Device choose_device(const RunConfig& config, const CudaGpus& gpus) {
  if (config.runtime.device == "cpu") {
    return {};
  }
  const std::string reason = why_no_gpu_runs(config, gpus);
  if (reason.empty()) {
    return {.gpu = gpus.usable.front(), .reason = ""};
  }
  if (config.runtime.device == "cuda") {
    throw_config_error(
        "runtime.device = \"cuda\": {}; change that, or set runtime.device = \"cpu\"", reason);
  }
  return {.gpu = std::nullopt, .reason = reason};
}

std::string describe_device(const Device& device) {
  if (device.gpu) {
    return fmt::format("device   cuda: {}, {}\n", device.gpu->name,
                       format_bytes(device.gpu->memory_bytes));
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
