#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/comm/communicators.h"
#include "backends/cuda/comm/emulated_calls.h"
#include "backends/cuda/comm/peer_calls.h"
#include "backends/cuda/kernel.h"
#include "comm/rendezvous.h"
#include "ir/program.h"

namespace braid {

/// Communication of one rank with the others: by NCCL (communicators.h) or by copy engines
/// (peer_calls.h), as its tasks request; also the propagation of failures between ranks. If copy
/// engines do all of it, and ranks can access each other's memory, NCCL is not used: no
/// communicator is made, and the library may be missing. If the other ranks are emulated
/// (emulated_calls.h), no rank is connected, and this is `empty`.
///
/// Use in this order, on all ranks at the same time, with the device current: construct; make
/// kernels; `connect` when operands have addresses; make graphs; `await_others`; launch.
class RankCommunication {
 public:
  /// `programs` of the rank; they and `rendezvous` must outlive this object. Throws InternalError
  /// if a task communicates with other ranks and there is no rendezvous, and what Communicators
  /// throws.
  RankCommunication(std::span<const Program> programs, Rendezvous* rendezvous,
                    CommunicatorOptions options);
  /// The same with emulated other ranks.
  RankCommunication(std::span<const Program> programs, const EmulatedPeers& peers);
  ~RankCommunication();
  RankCommunication(const RankCommunication&) = delete;
  RankCommunication& operator=(const RankCommunication&) = delete;

  /// Whether no task communicates with a real rank.
  bool empty() const { return copies_ == nullptr; }
  bool is_emulated() const { return emulated_ != nullptr; }

  /// The rendezvous of exactly the ranks of this executor; there is one unless this is `empty`.
  Rendezvous& meeting() const { return *meeting_; }

  /// Whether NCCL has windows on the memory of operands, which must then outlive this object.
  bool has_windows() const;
  /// The allocator for the memory of operands.
  const Allocator& allocator() const;

  /// The kernel of a task that copy engines run. `connect` makes it (an emulated call has it at
  /// once); its address does not change. Null for all other tasks.
  const CudaKernel* copy_kernel(size_t program, TaskId task) const;
  /// The kernel of a task that NCCL runs.
  CudaKernel make_nccl_kernel(const Program& program, const Task& task) const;
  /// The emulated calls of the program's last step.
  std::vector<HostTimedTask> played(size_t program) const;

  /// Exchanges the addresses of operands between ranks; the memory must still be zero.
  void connect(const OperandMemory& operands);

  /// Returns when all ranks have called it. After that, no rank may do anything that waits for the
  /// whole device, or for all devices of the process: make another rank's memory accessible,
  /// allocate memory, load a kernel, make a graph. Such a call could deadlock: it waits, holding a
  /// lock of the driver, for a step that waits for another rank of this process, which waits for
  /// the lock.
  void await_others();

  /// Waits for the work before a recorded event. Throws AbortedError if another rank fails
  /// meanwhile, since its part of the calls never arrives. False if the work has not ended within
  /// `limit`.
  bool wait(cudaEvent_t event, std::optional<std::chrono::nanoseconds> limit) const;

  /// After a failure: ends the waits of copies that have been reached. A wait that has ended takes
  /// its flag back, and the next step waits for it again, so call this until the work has ended.
  void release_waits() const noexcept;

  /// Why another rank failed, or NCCL's error; nullopt if no failure is known.
  std::optional<std::string> fault() const;

  /// This rank has failed: tells the others, and ends waiting calls on this rank.
  void fail(const std::string& reason) noexcept;

  /// Facts for the user about how calls are done, one clause each.
  std::vector<std::string> notes() const;
  /// Device memory in addition to the operands.
  int64_t workspace_bytes() const;

 private:
  std::span<const Program> programs_;
  std::unique_ptr<Rendezvous> meeting_;           // of this object alone; null: no other ranks
  std::unique_ptr<Communicators> communicators_;  // null: no task needs one
  std::unique_ptr<PeerCalls> copies_;             // null: no task communicates
  std::unique_ptr<EmulatedCalls> emulated_;       // instead of the members above
};

}  // namespace braid
