#include "support/executor_contract.h"

#include "support/cpu_executors.h"
#include "support/deferred_executor.h"

namespace braid {
namespace {

ExecutorKind cpu_kind(std::string name, const CpuExecutorOptions& options) {
  return {std::move(name), [options](std::vector<Program> programs, TaskHook hook) {
            CpuExecutorOptions hooked = options;
            if (hook) {
              hooked.make_kernel = hooked_kernels(std::move(hook));
            }
            return std::make_unique<LoneCpuExecutor>(std::move(programs), hooked);
          }};
}

/// With steps in flight, which the CPU by itself has not.
ExecutorKind deferred(ExecutorKind kind) {
  const auto make = kind.make;
  kind.name += "Deferred";
  kind.make = [make](std::vector<Program> programs, TaskHook hook) -> std::unique_ptr<Executor> {
    return std::make_unique<DeferredExecutor>(make(std::move(programs), std::move(hook)),
                                              DeferredExecutor::Options{});
  };
  return kind;
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExecutorContract,
                         ::testing::Values(cpu_kind("OneWorker", {}),
                                           deferred(cpu_kind("OneWorker", {})),
                                           cpu_kind("ThreeWorkersPoisoned",
                                                    {.num_workers = 3, .poison_step_arena = true})),
                         executor_kind_name);

}  // namespace
}  // namespace braid
