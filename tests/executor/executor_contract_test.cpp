#include "support/executor_contract.h"

#include "support/cpu_executors.h"

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

INSTANTIATE_TEST_SUITE_P(Cpu, ExecutorContract,
                         ::testing::Values(cpu_kind("OneWorker", {}),
                                           cpu_kind("ThreeWorkersPoisoned",
                                                    {.num_workers = 3, .poison_step_arena = true})),
                         kind_name);

}  // namespace
}  // namespace braid
