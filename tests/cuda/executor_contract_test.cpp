#include "support/executor_contract.h"

#include "support/cuda_executors.h"
#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

const ::testing::Environment* const kContext =
    ::testing::AddGlobalTestEnvironment(new SharedCudaContext);

ExecutorKind cuda_kind(std::string name, const CudaExecutorOptions& options) {
  return {std::move(name),
          [options](std::vector<Program> programs, TaskHook hook) -> std::unique_ptr<Executor> {
            CudaExecutorOptions hooked = options;
            if (hook) {
              hooked.make_kernel = hooked_cuda_kernels(std::move(hook));
            }
            return make_cuda_executor(std::move(programs), std::move(hooked));
          },
          why_no_gpu()};
}

// The first step of a graph executor runs task by task, so tests of several steps meet both ways.
INSTANTIATE_TEST_SUITE_P(Cuda, ExecutorContract,
                         ::testing::Values(cuda_kind("Graph", {}),
                                           cuda_kind("GraphPoisoned", {.poison_step_arena = true}),
                                           cuda_kind("Eager", {.mode = CudaStepMode::kEager}),
                                           cuda_kind("OneByOne", {.sync_each_task = true})),
                         executor_kind_name);

}  // namespace
}  // namespace braid
