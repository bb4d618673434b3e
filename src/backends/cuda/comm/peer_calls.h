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
/// the operands of other ranks, with flags in device memory that streams set and wait for. It needs
/// no SM, and can be captured into a graph. Rows of experts are moved by a kernel (row_exchange.h).
/// A waiting stream blocks others that share its hardware queue (hardware_queues.h).
///
/// Use in this order: construct; `find_peers`; hand out the kernels; `connect` when the operands
/// have addresses; launch. Every rank of a run does this at the same time.
class PeerCalls {
 public:
  /// `programs` must outlive this object. Throws InternalError for a task that needs more than
  /// copies.
  PeerCalls(int rank, std::span<const Program> programs);
  ~PeerCalls();
  PeerCalls(const PeerCalls&) = delete;
  PeerCalls& operator=(const PeerCalls&) = delete;

  bool empty() const;

  /// The kernel of a task; null for a task that does not access peers. Its address does not
  /// change; it can be launched after `connect`.
  const CudaKernel* kernel(size_t program, TaskId task) const;

  /// Conditions that may prevent this rank from reaching its peers.
  struct Reach {
    bool shares_operands =
        true;           ///< false: its operands' memory cannot be mapped by others (NCCL's windows)
    std::string fault;  ///< why this rank must neither push nor wait; empty if it may
  };

  /// Allocates the flags, and determines, together with the other ranks of these calls, which ranks
  /// can access each other's memory. Throws what PeerMemory does.
  void find_peers(const Reach& reach, Rendezvous& rendezvous);

  /// Whether the ranks of a task that has a kernel here may be unable to access each other's
  /// memory, so that `connect` may replace its kernel. The same answer on all of them.
  bool may_be_apart(size_t program, TaskId task) const;

  struct Connection {
    std::vector<SharedMemory> memory;  ///< the memory of the operands; the same number on each rank
    /// The address of an operand of a task.
    std::function<std::byte*(size_t program, TaskId task, size_t operand)> address;
    /// The kernel of a task whose ranks cannot access each other's memory; only called for tasks
    /// that `may_be_apart`.
    std::function<CudaKernel(size_t program, TaskId task)> otherwise;
  };

  /// Sends the addresses of its operands and flags to the other ranks of these calls, and waits for
  /// theirs. Throws what PeerMemory does, DeviceError if memory is no longer accessible although
  /// the flags were, or if ranks that exchange rows cannot access each other's, and InternalError
  /// if ranks do not know each other's calls.
  void connect(const Connection& connection, Rendezvous& rendezvous);

  /// One line per set of ranks that cannot access each other's memory, with the reason.
  const std::vector<std::string>& apart() const;

  /// Device memory for the flags.
  int64_t flag_bytes() const;

  /// Ends each wait of launched work once, after a rank has failed and its part never arrives. A
  /// wait takes its flag back, so a second step in flight needs another call. The data is then
  /// invalid, and exchanges of rows move nothing. Streams continue; the call does not wait for
  /// them.
  void release() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
