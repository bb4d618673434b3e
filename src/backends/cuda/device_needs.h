#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/comm/communicator_keys.h"
#include "ir/op_spec.h"
#include "ir/program.h"

/// What a rank takes of a GPU besides the arenas of its memory plan. Knows nothing of CUDA and
/// needs no GPU, so that a run can be checked anywhere before anything is allocated.
namespace braid {

/// No CUDA kernel of the spec takes more scratch: exactly what our own kernels ask for, the limit
/// that matrix products are given, and a bound for cuDNN's attention. A build without our backward
/// of attention counts cuDNN's, which needs more, and one without kernels that fuse a product with
/// SwiGLU's backward the gradient between the two. `repeatable` as in RankOptions.
size_t max_cuda_scratch_bytes(const OpSpec& spec, bool repeatable);

/// A communicator of NCCL, and about what it takes of a GPU.
struct NcclNeed {
  CommunicatorKey key;
  int64_t bytes = 0;
};

/// Bytes beside the arenas, none of which are known exactly before the run.
struct CudaNeeds {
  /// Of kernels, one block per stream (stream_scratch.h), with `max_cuda_scratch_bytes`.
  int64_t scratch_bytes = 0;
  /// Executable graphs of the programs, twice while a step is traced; streams and events; CUPTI's
  /// buffers on the device; code that is loaded when it is first used.
  int64_t driver_bytes = 0;
  /// By communicator; none where copy engines do all communication.
  std::vector<NcclNeed> nccl;

  int64_t nccl_bytes() const;
};

/// CUDA's context in a process that has done nothing yet. With what `driver_bytes` counts, 0.5 to
/// 0.6 GiB on an H200 with driver 580 (bench/gpu/h200.md: by the driver, less planned and scratch).
inline constexpr int64_t kCudaContextBytes = int64_t{384} << 20;

/// Communicators that the programs of a rank need if its copy engines reach all that they are to.
///
/// An estimate, from above: 320 MiB of its own, and 12 MiB per channel and member that
/// it is connected with. Rings and trees have 24 channels between GPUs on NVSwitch, and connections
/// to three members at most; all-to-all has 32 to each member, messages 32 to one. A connection has
/// the buffers of NCCL's three protocols at the receiver (4 MiB of NCCL_BUFFSIZE, 4.7 and 0.5 MiB)
/// and its counters at the sender, in pages of 2 MiB. So 1.78 GiB of the three communicators of
/// two H200 whose driver says 1.69, and 3.47 of 3.5 on four (bench/gpu/h200x2.md, h200x4.md: by the
/// driver, less planned, scratch and what `driver_bytes` and the context are counted with).
std::vector<NcclNeed> nccl_needs(std::span<const Program> programs);

/// In a line, with its end: "nccl      about 1.78 GiB of 3 communicators: gradient.shard of ranks
/// 0, 1 608 MiB; ..."; empty if there are none.
std::string describe_nccl_needs(std::span<const Program> programs);

/// Of the programs of one rank after all passes.
CudaNeeds cuda_needs(std::span<const Program> programs, bool repeatable);

}  // namespace braid
