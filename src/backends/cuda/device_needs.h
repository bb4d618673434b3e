#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/comm/communicator_keys.h"
#include "ir/op_spec.h"
#include "ir/program.h"

/// GPU memory of a rank in addition to the arenas of its memory plan. Needs neither CUDA nor a GPU,
/// so that a run can be checked on any machine before anything is allocated.
namespace braid {

/// Upper bound of the scratch of the spec's CUDA kernels: the exact size for our own kernels, the
/// limit given to matrix products, and a bound for cuDNN's attention. A build without our backward
/// of attention counts cuDNN's, which needs more. A build without kernels that fuse a product with
/// SwiGLU's backward also counts the gradient between the two. `repeatable` as in RankOptions.
size_t max_cuda_scratch_bytes(const OpSpec& spec, bool repeatable);

/// An NCCL communicator, and an estimate of its GPU memory.
struct NcclNeed {
  CommunicatorKey key;
  int64_t bytes = 0;
};

/// Bytes in addition to the arenas; all are estimates before the run.
struct CudaNeeds {
  /// Scratch of kernels, one block per stream (stream_scratch.h), with `max_cuda_scratch_bytes`.
  int64_t scratch_bytes = 0;
  /// Executable graphs of the programs, twice while a step is traced; streams and events; CUPTI's
  /// buffers on the device; code that is loaded on first use.
  int64_t driver_bytes = 0;
  /// By communicator; empty if copy engines do all communication.
  std::vector<NcclNeed> nccl;

  int64_t nccl_bytes() const;
};

/// CUDA's context in an idle process. Together with `driver_bytes`, 0.5 to 0.6 GiB on an H200 with
/// driver 580 (bench/gpu/h200.md: use reported by the driver minus planned memory and scratch).
inline constexpr int64_t kCudaContextBytes = int64_t{384} << 20;

/// GPU memory of one NCCL communicator, an upper estimate: 320 MiB per communicator, and 12 MiB per
/// channel and connected member. Rings and trees have 24 channels between GPUs on NVSwitch, and
/// connections to at most three members; all-to-all has 32 to each member, messages 32 to one. A
/// connection has the buffers of NCCL's three protocols at the receiver (4 MiB of
/// NCCL_BUFFSIZE, 4.7 and 0.5 MiB) and its counters at the sender, in pages of 2 MiB. This
/// gives 1.78 GiB for the three communicators of two H200, for which the driver reports 1.69,
/// and 3.47 instead of 3.5 on four (bench/gpu/h200x2.md, h200x4.md: use reported by the driver
/// minus planned memory, scratch, and the estimates for `driver_bytes` and the context). An
/// all-to-all of more than 8 ranks counts as one over hosts of 8: connections to the 7 others of a
/// host, and the pool that all connections over the network share (NCCL_NET_SHARED_BUFFERS), which
/// was not measured.
int64_t communicator_bytes(const CommunicatorShape& shape);

/// Communicators that the programs of a rank need if its copy engines reach all of their targets,
/// with `communicator_bytes`.
std::vector<NcclNeed> nccl_needs(std::span<const Program> programs);

/// One line, newline included: "nccl      about 1.78 GiB of 3 communicators: gradient.shard of
/// ranks 0, 1 608 MiB; ..."; empty if there are none.
std::string describe_nccl_needs(std::span<const Program> programs);

/// For the programs of one rank after all passes.
CudaNeeds cuda_needs(std::span<const Program> programs, bool repeatable);

}  // namespace braid
