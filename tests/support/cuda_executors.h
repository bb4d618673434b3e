#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_executor.h"
#include "memory/memory_plan.h"
#include "support/executor_helpers.h"

namespace braid {

/// One context on device 0 for all tests of the program, made when first asked for.
class SharedCudaContext : public ::testing::Environment {
 public:
  static CudaContext& get() {
    if (context_ == nullptr) {
      context_ = std::make_unique<CudaContext>(0, "");
    }
    return *context_;
  }
  void TearDown() override { context_.reset(); }

 private:
  static inline std::unique_ptr<CudaContext> context_;
};

inline MemoryPlan memory_of(const std::vector<Program>& programs) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) {
    pointers.push_back(&program);
  }
  return plan_memory(pointers);
}

inline std::unique_ptr<CudaExecutor> make_cuda_executor(std::vector<Program> programs,
                                                        CudaExecutorOptions options = {}) {
  MemoryPlan plan = memory_of(programs);
  return std::make_unique<CudaExecutor>(std::move(programs), std::move(plan),
                                        SharedCudaContext::get(), std::move(options));
}

inline std::unique_ptr<CudaExecutor> make_cuda_executor(Program program,
                                                        CudaExecutorOptions options = {}) {
  std::vector<Program> programs;
  programs.push_back(std::move(program));
  return make_cuda_executor(std::move(programs), std::move(options));
}

/// A hook with the spec that it is called with, for callbacks that take one pointer.
struct HookCall {
  TaskHook hook;
  OpSpec spec;

  bool is_captured(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    BRAID_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
  }
  /// In a graph the hook becomes a node before the kernel; else it runs now, and may throw.
  void enqueue(cudaStream_t stream) {
    if (is_captured(stream)) {
      BRAID_CUDA_CHECK(cudaLaunchHostFunc(stream, run, this));
    } else {
      hook(spec);
    }
  }
  static void run(void* call) {
    auto* const self = static_cast<HookCall*>(call);
    self->hook(self->spec);
  }
};

/// make_cuda_kernel's kernels with `hook` before each launch.
inline CudaKernelFactory hooked_cuda_kernels(TaskHook hook) {
  return [hook = std::move(hook)](const OpSpec& spec, CudaContext& context) {
    CudaKernel kernel = make_cuda_kernel(spec, context);
    auto call = std::make_shared<HookCall>(HookCall{hook, spec});
    kernel.launch = [call, launch = std::move(kernel.launch)](const CudaKernelArgs& args) {
      call->enqueue(args.stream);
      launch(args);
    };
    return kernel;
  };
}

}  // namespace braid
