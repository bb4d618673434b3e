#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"

/// The functions of kCudaBackend that need CUDA. A build without it has the same ones: there are
/// no GPUs then, with that as the reason.
namespace braid {

/// GPUs that this build has kernels for. Throws nothing: what CUDA says against it is the reason.
/// The first call in a process asks for hardware queues for programs of so many streams
/// (hardware_queues.h): with more than are needed streams wait longer for each other.
FoundDevices find_cuda_gpus(size_t num_streams);

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

/// A CudaExecutor with a context of its own. Throws as its constructor does, and ConfigError if
/// this build has no CUDA, or `require_own_queues` does for a rank that shares its GPU.
std::unique_ptr<Executor> make_cuda_rank(std::vector<Program> programs, MemoryPlan plan,
                                         const RankOptions& options);

}  // namespace braid
