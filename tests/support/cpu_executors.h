#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/cpu_executor.h"
#include "comm/transport.h"
#include "memory/memory_plan.h"
#include "support/executor_helpers.h"

namespace braid {

inline MemoryPlan plan_of(const std::vector<Program>& programs) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) {
    pointers.push_back(&program);
  }
  return plan_memory(pointers);
}

/// make_cpu_kernel's kernels with `hook` before each run.
inline CpuKernelFactory hooked_kernels(TaskHook hook) {
  return [hook = std::move(hook)](const OpSpec& spec, int num_workers) {
    CpuKernel kernel = make_cpu_kernel(spec, num_workers);
    kernel.run = [hook, spec, run = std::move(kernel.run)](const KernelArgs& args) {
      hook(spec);
      run(args);
    };
    return kernel;
  };
}

/// For EngineOptions::make_executor: ranks on the CPU, with `hook_of(rank)` before each run of
/// a kernel where it is not empty.
inline auto hooked_ranks(std::function<TaskHook(int rank)> hook_of) {
  return [hook_of = std::move(hook_of)](std::vector<Program> programs, MemoryPlan plan,
                                        const RankOptions& options,
                                        int rank) -> std::unique_ptr<Executor> {
    TaskHook hook = hook_of(rank);
    return std::make_unique<CpuExecutor>(
        std::move(programs), std::move(plan),
        CpuExecutorOptions{
            .transport = options.transport,
            .num_workers = options.num_workers,
            .make_kernel = hook ? hooked_kernels(std::move(hook)) : CpuKernelFactory(),
            .stuck_timeout_ns = options.stuck_timeout_ns});
  };
}

struct OwnTransport {
  std::vector<std::unique_ptr<Transport>> transports;
};

/// An executor with a transport of its own, for programs that communicate with nobody else.
class LoneCpuExecutor : private OwnTransport, public CpuExecutor {
 public:
  LoneCpuExecutor(std::vector<Program> programs, CpuExecutorOptions options)
      : OwnTransport{make_in_process_transports({.num_ranks = programs.at(0).num_ranks})},
        CpuExecutor(programs, plan_of(programs), with_transport(programs[0].rank, options)) {}

 private:
  CpuExecutorOptions with_transport(int rank, CpuExecutorOptions options) {
    options.transport = transports.at(static_cast<size_t>(rank)).get();
    return options;
  }
};

}  // namespace braid
