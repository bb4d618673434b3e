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

/// The communication of a rank that is alone on its GPU; its tasks take as long as with real other
/// ranks (comm/emulated_call.h). It can be captured into a graph, takes no SM, and runs
/// concurrently with compute as pushes to peers do: the stream waits until the duration of the call
/// has passed (call_player.h), which leaves no profiler record. Copies within the device fill y in
/// steps that are enqueued task by task and, if results are produced in every step
/// (EmulatedPeers::anew_bytes), in graphs. During matrix products such a copy runs at a fifth to a
/// twentieth of its rate alone (1 to 128 MB on H200), unlike a push to a peer; so times are
/// accurate only without these copies.
///
/// Exchanges of rows run their kernel in every step, on this rank's memory alone.
///
/// Not emulated: the SMs that NCCL's kernels would occupy, traffic in this device's memory, and the
/// slowdown of concurrent calls by each other.
class EmulatedCalls {
 public:
  /// For the programs of one rank, whose groups must outlive this object. Measures the overhead of
  /// an empty call on the current device. Throws InternalError if `peers` and the programs do not
  /// fit together, and DeviceError.
  EmulatedCalls(std::span<const Program> programs, const EmulatedPeers& peers);
  ~EmulatedCalls();
  EmulatedCalls(const EmulatedCalls&) = delete;
  EmulatedCalls& operator=(const EmulatedCalls&) = delete;

  /// The kernel of a task; null if the task communicates with no other rank. Its address does not
  /// change.
  const CudaKernel* kernel(size_t program, TaskId task) const;

  /// The times of the last run of a program's calls, without calls that never ran.
  std::vector<HostTimedTask> played(size_t program) const;

  /// Device memory in addition to the operands.
  int64_t device_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
