#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/copy_steps.h"
#include "backends/cuda/comm/peer_memory.h"
#include "backends/cuda/kernel.h"
#include "comm/rendezvous.h"
#include "ir/program.h"

namespace braid {

/// The communication that copy engines do (copy_steps.h) for the programs of one rank: pushes into
/// the operands of other ranks, with flags in device memory that streams set and await. Nothing of
/// it needs an SM, and all of it can be captured into a graph. A stream that waits holds up others
/// that share its hardware queue (hardware_queues.h).
///
/// Used in this order: construct; `find_peers`; give the kernels to whoever launches them;
/// `connect` once the operands have addresses; launch. Each rank of a run does so at the same time.
class PeerCalls {
 public:
  /// Throws InternalError for a task that copies do not suffice for.
  PeerCalls(int rank, std::span<const Program> programs);
  ~PeerCalls();
  PeerCalls(const PeerCalls&) = delete;
  PeerCalls& operator=(const PeerCalls&) = delete;

  bool empty() const;

  /// The kernel of a task; null for one that does not belong here. Its address does not change; it
  /// can be launched once the calls are connected.
  const CudaKernel* kernel(size_t program, TaskId task) const;

  /// What may keep this rank from its peers.
  struct Reach {
    bool shares_operands =
        true;           ///< no: in memory that other processes cannot map (NCCL's windows)
    std::string fault;  ///< why this rank must neither push nor wait; empty if it may
  };

  /// Makes the flags, and finds out together with the other ranks of these calls who reaches whose
  /// memory. Throws what PeerMemory does.
  void find_peers(const Reach& reach, Rendezvous& rendezvous);

  /// Whether the ranks of a task that has a kernel here may be unable to reach each other's memory,
  /// so that `connect` may take its kernel from elsewhere. The same answer on all of them.
  bool may_be_apart(size_t program, TaskId task) const;

  struct Connection {
    std::vector<SharedMemory> memory;  ///< that has the operands; as many on each rank
    /// The address of an operand of a task.
    std::function<std::byte*(size_t program, TaskId task, size_t operand)> address;
    /// The kernel of a task whose ranks cannot reach each other's memory; of none but those that
    /// `may_be_apart`.
    std::function<CudaKernel(size_t program, TaskId task)> otherwise;
  };

  /// Tells the other ranks of these calls where its operands and flags are, and waits for theirs.
  /// Throws what PeerMemory does, DeviceError if memory can no more be reached than the flags could
  ///, and InternalError if ranks do not know of each other's calls.
  void connect(const Connection& connection, Rendezvous& rendezvous);

  /// One line per set of ranks that cannot reach each other's memory, and why.
  const std::vector<std::string>& apart() const;

  /// Device memory for the flags.
  int64_t flag_bytes() const;

  /// Ends all waits of what has been launched, now and later: a rank has failed, and its part never
  /// comes. The data is then worth nothing. Streams go on by themselves; waits for nothing.
  void release() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
