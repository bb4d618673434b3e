#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/cuda/kernel.h"
#include "backends/device_activity.h"
#include "comm/emulated_call.h"
#include "ir/program.h"

namespace braid {

/// The communication of a rank that is alone on its GPU, and whose tasks take as long as if it were
/// not (comm/emulated_call.h). It can be captured into a graph, takes no SM, and runs beside
/// compute as pushes to peers do: the stream waits until the time of the call is over
/// (call_player.h), which leaves no record of a profiler. Copies within the device fill y, in steps
/// that are enqueued task by task and, where peers do so in every step, in graphs
/// (EmulatedPeers::anew_bytes). Beside products such a copy runs at a fifth to a twentieth of its
/// rate alone (1 to 128 MB on H200), which pushes to peers do not; so times are true without them.
///
/// What that leaves out: SMs that NCCL's kernels would hold, traffic in this device's memory, and
/// what calls that run at the same time take from each other.
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

  /// When the calls of a program took place the last time; those that never did are left out.
  std::vector<HostTimedTask> played(size_t program) const;

  /// Device memory besides the operands'.
  int64_t device_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
