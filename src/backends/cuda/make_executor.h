#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/executor.h"
#include "comm/emulated_call.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

/// The CUDA backend for those who know nothing of CUDA. A build without it has the same functions:
/// there are no GPUs then, with that as the reason.
namespace braid {

class Rendezvous;

struct CudaGpu {
  int device = 0;  ///< number by which CUDA knows it
  std::string name;
  int64_t memory_bytes = 0;
};

struct CudaGpus {
  std::vector<CudaGpu> usable;
  std::string why_none;  ///< "this build has no CUDA"; empty if there are some
  /// Of several: why those of one run cannot communicate ("this build has no NCCL", or what the
  /// loader says); empty if they can.
  std::string why_alone = {};
};

/// Where it is not known how many streams programs will have.
inline constexpr size_t kAnyNumberOfStreams = SIZE_MAX / 2;

/// GPUs that this build has kernels for. Throws nothing: what CUDA says against it is the reason.
/// The first call in a process asks for hardware queues for programs of so many streams
/// (hardware_queues.h): with more than are needed streams wait longer for each other.
CudaGpus find_cuda_gpus(size_t num_streams = kAnyNumberOfStreams);

/// What the driver has free on a GPU, with CUDA's context of this process, which this makes,
/// already taken off. Throws DeviceError.
int64_t free_cuda_bytes(int device);

/// "driver 580.159.04, CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0": what measured times depend on
/// besides the GPU. Empty in a build without CUDA.
std::string cuda_software();

/// What measures the timelines of traced steps: "CUPTI 13.0.1 (libcupti.so.13)", or "events between
/// tasks: " and why it is not CUPTI. Empty in a build without CUDA.
std::string describe_cuda_tracing();

/// "NCCL 2.28.9 (libnccl.so.2), with symmetric windows", or why ranks on GPUs have none. Empty in a
/// build without CUDA.
std::string describe_cuda_communication();

struct CudaRankOptions {
  int device = 0;
  std::string
      cache_folder;  ///< of measured algorithm choices; empty: choices last as long as the executor
  bool poison_step_arena = false;  ///< as in CudaExecutorOptions
  bool eager = false;              ///< task by task instead of one graph
  bool sync_each_task = false;     ///< as in CudaExecutorOptions
  bool repeatable = true;     ///< false: the backward of attention may add in any order, which is
                              ///< faster
  bool nccl_windows = false;  ///< as in CudaExecutorOptions
  bool shares_gpu = false;    ///< ranks of this run have the same device
  Rendezvous* rendezvous = nullptr;                            ///< as in CudaExecutorOptions
  int64_t timeout_ns = 0;                                      ///< as in CudaExecutorOptions
  std::optional<EmulatedPeers> emulated_peers = std::nullopt;  ///< as in CudaExecutorOptions
};

/// A CudaExecutor with a context of its own. Throws as its constructor does, and ConfigError if
/// this build has no CUDA, or `require_own_queues` does for a rank that shares its GPU.
std::unique_ptr<Executor> make_cuda_rank(std::vector<Program> programs, MemoryPlan plan,
                                         const CudaRankOptions& options);

}  // namespace braid
