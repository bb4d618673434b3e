#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"

/// The functions of kCudaBackend that need CUDA. A build without CUDA has stand-ins that report no
/// GPUs, with that reason.
namespace braid {

/// GPUs that this build has kernels for. Throws nothing: CUDA's error becomes the reason. The first
/// call in a process requests hardware queues for programs of `num_streams` streams
/// (hardware_queues.h); with more queues than needed, streams wait longer for each other.
FoundDevices find_cuda_gpus(size_t num_streams);

/// Free memory of a GPU according to the driver, after this process's CUDA context, which the call
/// creates. Throws DeviceError.
int64_t free_cuda_bytes(int device);

/// "driver 580.159.04, CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0": the software that affects
/// measured times. Empty in a build without CUDA.
std::string cuda_software();

/// The method for timelines of traced steps: "CUPTI 13.0.1 (libcupti.so.13)", or "events between
/// tasks: " and the reason. Empty in a build without CUDA.
std::string describe_cuda_tracing();

/// "NCCL 2.28.9 (libnccl.so.2), with symmetric windows", or why NCCL is unavailable. Empty in a
/// build without CUDA.
std::string describe_cuda_communication();

/// A CudaExecutor with its own context. Throws as its constructor does, ConfigError if this build
/// has no CUDA, and as `require_own_queues` does for a rank that shares its GPU.
std::unique_ptr<Executor> make_cuda_rank(std::vector<Program> programs, MemoryPlan plan,
                                         const RankOptions& options);

}  // namespace braid
