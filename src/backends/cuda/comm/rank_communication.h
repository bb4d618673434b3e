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

/// How one rank communicates with the others: by NCCL (communicators.h) or by copy engines
/// (peer_calls.h), as its tasks ask for; and how ranks tell each other that one has failed. Where
/// copy engines do all of it, and ranks reach each other's memory, there is no NCCL: no
/// communicator is made, and its library need not be there. Where the others are emulated
/// (emulated_calls.h) there is nobody to meet, and this is `empty`.
///
/// Used in this order, by all ranks at the same time, with the device current: construct; make
/// kernels; `connect` once operands have addresses; make graphs; `await_others`; launch.
class RankCommunication {
 public:
  /// `programs` of the rank; they and `rendezvous` must outlive this. Throws InternalError if a
  /// task communicates with other ranks and there is no rendezvous, and what Communicators throws.
  RankCommunication(std::span<const Program> programs, Rendezvous* rendezvous,
                    CommunicatorOptions options);
  /// The same with others that are emulated.
  RankCommunication(std::span<const Program> programs, const EmulatedPeers& peers);
  ~RankCommunication();
  RankCommunication(const RankCommunication&) = delete;
  RankCommunication& operator=(const RankCommunication&) = delete;

  /// Whether no task communicates with a rank that is there.
  bool empty() const { return copies_ == nullptr; }
  bool is_emulated() const { return emulated_ != nullptr; }

  /// Where all ranks of this executor, and no others, meet; there is one unless this is `empty`.
  Rendezvous& meeting() const { return *meeting_; }

  /// Whether NCCL has windows on the memory of operands, which must then outlive this.
  bool has_windows() const;
  /// Who gives the memory of operands.
  const Allocator& allocator() const;

  /// The kernel of a task that copy engines do, which is made by `connect` (not that of an emulated
  /// call, which is there at once): its address does not change. Null for all other tasks.
  const CudaKernel* copy_kernel(size_t program, TaskId task) const;
  /// The kernel of a task that NCCL does.
  CudaKernel make_nccl_kernel(const Program& program, const Task& task) const;
  /// Emulated calls of the program's last step.
  std::vector<HostTimedTask> played(size_t program) const;

  /// Ranks learn where operands are; the memory must still be zero.
  void connect(const OperandMemory& operands);

  /// Returns when all ranks have come here. On no rank may anything that waits for the whole
  /// device, or for all devices of the process, come later: another rank's memory made accessible,
  /// memory allocated, a kernel loaded, a graph made. It could wait, with a lock of the driver, for
  /// a step that waits for another rank of this process, which waits for the lock.
  void await_others();

  /// Waits for the work that an event was recorded behind. Throws AbortedError if another rank
  /// fails meanwhile, whose part of the calls never comes. False if it has not ended within
  /// `limit`.
  bool wait(cudaEvent_t event, std::optional<std::chrono::nanoseconds> limit) const;

  /// Why another rank failed, or what NCCL has met; nullopt if all is well, as far as is known.
  std::optional<std::string> fault() const;

  /// This rank has failed: tells the others, and ends what waits for them here.
  void fail(const std::string& reason) noexcept;

  /// What a user should know of how calls are done, one clause each.
  std::vector<std::string> notes() const;
  /// Device memory besides the operands'.
  int64_t workspace_bytes() const;

 private:
  std::span<const Program> programs_;
  std::unique_ptr<Rendezvous> meeting_;           // of this object alone; null: nobody to meet
  std::unique_ptr<Communicators> communicators_;  // null: no task needs one
  std::unique_ptr<PeerCalls> copies_;             // null: no task communicates
  std::unique_ptr<EmulatedCalls> emulated_;       // instead of all of these
};

}  // namespace braid
