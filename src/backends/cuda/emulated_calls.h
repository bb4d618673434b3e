#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backends/cuda/kernel.h"
#include "comm/emulated_call.h"
#include "ir/program.h"

namespace braid {

/// The communication of a rank that is alone on its GPU, and whose tasks take as long as if it were
/// not (comm/emulated_call.h). Copy engines do all of it, so that it can be captured into a graph,
/// takes no SM, and runs beside compute as pushes to peers do: first copies within the device,
/// which fill y, then one of page-locked host memory that nobody reads, as long as is missing.
///
/// What that leaves out: SMs that NCCL's kernels would hold, and most of the traffic that peers
/// cause in this device's memory (a link to the host carries less in the same time). Calls that run
/// at the same time share that one link.
class EmulatedCalls {
 public:
  /// Of the programs of one rank, whose groups must live as long as this. Measures on the current
  /// device what copies take. Throws InternalError if `peers` and the programs do not fit together,
  /// and DeviceError.
  EmulatedCalls(std::span<const Program> programs, const EmulatedPeers& peers);
  ~EmulatedCalls();
  EmulatedCalls(const EmulatedCalls&) = delete;
  EmulatedCalls& operator=(const EmulatedCalls&) = delete;

  /// The kernel of a task; null for one that communicates with no other rank. Its address does not
  /// change.
  const CudaKernel* kernel(size_t program, TaskId task) const;

  /// Device memory besides the operands'.
  int64_t device_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
