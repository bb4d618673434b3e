#include "backends/cpu/cpu_backend.h"

#include <array>

#include "backends/cpu/cpu_executor.h"
#include "backends/cpu/cpu_scratch.h"
#include "backends/cpu/kernels/gemm.h"
#include "base/env.h"

namespace braid {
namespace {

constexpr std::array kDTypes = {DType::kF32, DType::kBF16, DType::kF64};

std::vector<DeviceNeed> cpu_needs(std::span<const Program> programs,
                                  const DeviceNeedsOptions& options) {
  return {{.what = std::string(kKernelScratch),
           .bytes = cpu_scratch_bytes(programs, options.num_workers)}};
}

std::vector<std::pair<std::string, std::string>> diagnose_cpu() {
  return {{"blas", blas_description()}};
}

std::vector<std::pair<std::string, std::string>> better_cpu_environment() {
  constexpr const char* kCoreType = "OPENBLAS_CORETYPE";
  const std::string core = better_blas_core();
  if (core.empty() || process_environment()(kCoreType)) {
    return {};  // the user has chosen, or this process has begun again
  }
  return {{kCoreType, core}};
}

std::unique_ptr<Executor> make_cpu_rank(std::vector<Program> programs, MemoryPlan plan,
                                        const RankOptions& options) {
  return std::make_unique<CpuExecutor>(
      std::move(programs), std::move(plan),
      CpuExecutorOptions{.transport = options.transport,
                         .num_workers = options.num_workers,
                         .poison_step_arena = options.poison_step_arena,
                         .stuck_timeout_ns = options.stuck_timeout_ns,
                         .emulated_peers = options.emulated_peers});
}

}  // namespace

constinit const Backend kCpuBackend = {
    .name = "cpu",
    .is_host = true,
    .dtypes = kDTypes,
    .calibration = {.longest_task_ns = 30e6, .warm_up_ns = 20'000'000, .sample_ns = 4'000'000},
    .needs = cpu_needs,
    .communicator_bytes = [](const CommunicatorShape&) { return int64_t{0}; },
    .describe_communication_needs = [](std::span<const Program>) { return std::string(); },
    .software = blas_description,
    .better_environment = better_cpu_environment,
    .diagnose = diagnose_cpu,
    .find_devices = [](size_t) { return FoundDevices(); },
    .make_executor = make_cpu_rank,
};

}  // namespace braid
