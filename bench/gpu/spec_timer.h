#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/kernel.h"
#include "ir/op_spec.h"

namespace braid {

/// Device memory of all operands of one launch, filled with what a step could hold: matrices
/// uniform in [-1, 1); statistics, losses and optimizer state in [0.05, 1), since a second moment
/// is positive; ids below the vocabulary; rows of experts of equal sizes. Never zeros, on which
/// matrix products run faster.
class RandomOperands {
 public:
  RandomOperands(const OpSpec& spec, int64_t vocabulary, uint32_t seed, cudaStream_t stream);
  std::span<std::byte* const> operands() const { return operands_; }

 private:
  void fill(const OperandSpec& spec, std::byte* to, int64_t vocabulary, cudaStream_t stream);

  std::mt19937 random_;
  std::vector<DeviceArena> memory_;
  std::vector<std::byte*> operands_;
};

struct SpecTiming {
  double ns = 0;             ///< median of one launch
  double spread = 0;         ///< (slowest - fastest) / median over the replays
  size_t scratch_bytes = 0;  ///< of the kernel
};

/// Times kernels one at a time, as a step runs them: launches captured into a graph, which rotate
/// over sets of operands that do not fit in the L2 cache together.
class SpecTimer {
 public:
  /// Ids in operands are below `vocabulary`. `context` must outlive the timer.
  SpecTimer(CudaContext& context, int64_t vocabulary);

  /// The kernel that a step would use, or another one for the same operands.
  SpecTiming time(const OpSpec& spec);
  SpecTiming time(const OpSpec& spec, const CudaKernel& kernel);

  /// The mean of one launch under its own steady load: 60 ms after 60 ms that do not count.
  double steady_ns(const OpSpec& spec);

  /// Bytes read and written per second by a copy of `bytes` (rounded to 2) inside the device.
  double copy_bytes_per_s(int64_t bytes);

 private:
  std::vector<RandomOperands> make_sets(const OpSpec& spec);

  CudaContext& context_;
  int64_t vocabulary_;
  CudaStream stream_;
};

}  // namespace braid
