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
/// not (comm/emulated_call.h). It can be captured into a graph, takes no SM, and runs beside
/// compute as pushes to peers do: copies within the device, by copy engines, fill y, which is as
/// much traffic in this device's memory as that of a rank which reads for others and is written to;
/// then the stream waits until the time of the call is over (call_player.h).
///
/// What that leaves out: SMs that NCCL's kernels would hold, and what calls that run at the same
/// time take from each other.
class EmulatedCalls {
 public:
  /// Of the programs of one rank, whose groups must live as long as this. Measures on the current
  /// device what a call takes that has nothing to do. Throws InternalError if `peers` and the
  /// programs do not fit together, and DeviceError.
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
