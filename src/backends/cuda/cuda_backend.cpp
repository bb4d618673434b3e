#include "backends/cuda/cuda_backend.h"

#include <array>

#include "backends/cuda/device_needs.h"
#include "backends/cuda/make_executor.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr std::array kDTypes = {DType::kBF16};

std::vector<DeviceNeed> needs(std::span<const Program> programs,
                              const DeviceNeedsOptions& options) {
  const CudaNeeds found = cuda_needs(programs, options.repeatable);
  return {{.what = std::string(kKernelScratch), .bytes = found.scratch_bytes},
          {.what = "CUDA",
           .bytes = found.driver_bytes + (options.with_context ? kCudaContextBytes : 0)},
          {.what = "NCCL", .bytes = found.nccl_bytes()}};
}

std::vector<std::pair<std::string, std::string>> diagnose() {
  const FoundDevices gpus = find_cuda_gpus(kAnyNumberOfStreams);
  if (gpus.usable.empty()) {
    return {{"gpu", gpus.why_none + "; training runs on the CPU"}};
  }
  const DeviceInfo& first = gpus.usable.front();
  return {{"gpu", fmt::format("{} x {}, {}; this build trains in bfloat16 there",
                              gpus.usable.size(), first.name, format_bytes(first.memory_bytes))},
          {"between gpus", describe_cuda_communication()},
          {"timelines", "by " + describe_cuda_tracing()}};
}

}  // namespace

constinit const Backend kCudaBackend = {
    .name = "cuda",
    .is_host = false,
    .dtypes = kDTypes,
    // Products take a GPU to its power limit, and its clock needs tens of milliseconds to settle,
    // as in a step; the warm-up is longer than that.
    .calibration = {.longest_task_ns = 20e6, .warm_up_ns = 60'000'000, .sample_ns = 5'000'000},
    .needs = needs,
    .communicator_bytes = communicator_bytes,
    .describe_communication_needs = describe_nccl_needs,
    .software = cuda_software,
    .diagnose = diagnose,
    .find_devices = find_cuda_gpus,
    .free_bytes = free_cuda_bytes,
    .make_executor = make_cuda_rank,
};

}  // namespace braid
