#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/executor.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

/// The CUDA backend for those who know nothing of CUDA. A build without it has the same functions:
/// there are no GPUs then, with that as the reason.
namespace braid {

struct CudaGpu {
  int device = 0;  ///< number by which CUDA knows it
  std::string name;
  int64_t memory_bytes = 0;
};

struct CudaGpus {
  std::vector<CudaGpu> usable;
  std::string why_none;  ///< "this build has no CUDA"; empty if there are some
};

/// GPUs that this build has kernels for. Throws nothing: what CUDA says against it is the reason.
CudaGpus find_cuda_gpus();

struct CudaRankOptions {
  int device = 0;
  std::string
      cache_folder;  ///< of measured algorithm choices; empty: choices last as long as the executor
  bool poison_step_arena = false;  ///< as in CudaExecutorOptions
  bool eager = false;              ///< task by task instead of one graph
};

/// A CudaExecutor with a context of its own. Throws as its constructor does, and ConfigError if
/// this build has no CUDA.
std::unique_ptr<Executor> make_cuda_rank(std::vector<Program> programs, MemoryPlan plan,
                                         const CudaRankOptions& options);

}  // namespace braid
