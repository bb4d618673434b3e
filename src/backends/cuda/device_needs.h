#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/op_spec.h"
#include "ir/program.h"

/// What a rank takes of a GPU besides the arenas of its memory plan. Knows nothing of CUDA and
/// needs no GPU, so that a run can be checked anywhere before anything is allocated.
namespace braid {

/// No CUDA kernel of the spec takes more scratch: exactly what our own kernels ask for, the limit
/// that matrix products are given, and a bound for cuDNN's attention. A build without our backward
/// of attention counts cuDNN's, which needs more. `repeatable` as in CudaRankOptions.
size_t max_cuda_scratch_bytes(const OpSpec& spec, bool repeatable);

/// Bytes beside the arenas, none of which are known exactly before the run.
struct CudaNeeds {
  /// Of kernels, one block per stream (stream_scratch.h), with `max_cuda_scratch_bytes`.
  int64_t scratch_bytes = 0;
  /// Executable graphs of the programs, twice while a step is traced; streams and events; CUPTI's
  /// buffers on the device; code that is loaded when it is first used.
  int64_t driver_bytes = 0;
};

/// CUDA's context in a process that has done nothing yet. With what `driver_bytes` counts, 0.5 to
/// 0.6 GiB on an H200 with driver 580 (bench/gpu/h200.md: by the driver, less planned and scratch).
inline constexpr int64_t kCudaContextBytes = int64_t{384} << 20;

/// Of the programs of one rank after all passes.
CudaNeeds cuda_needs(std::span<const Program> programs, bool repeatable);

}  // namespace braid
