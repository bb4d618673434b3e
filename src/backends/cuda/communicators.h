#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/kernel.h"
#include "comm/rendezvous.h"
#include "ir/program.h"

namespace braid {

/// A set of ranks whose calls NCCL takes one after the other.
struct CommunicatorKey {
  std::string name;        ///< of the group; of messages with " messages" behind it
  std::vector<int> ranks;  ///< in group order; of messages sender, receiver

  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};

/// "tensor of ranks 0, 1, 2, 3"
std::string describe_key(const CommunicatorKey& key);

/// The communicator of a task that communicates with other ranks; nullopt for all other tasks.
/// Collectives of a group have one. NCCL's messages have no channels and one order per
/// communicator, so those from one member to another have one of their own: what a program orders
/// by streams (passes/p2p_streams.h) then waits for nothing else.
std::optional<CommunicatorKey> communicator_key(const Program& program, const Task& task);

/// All of the programs of a rank, in the one order in which every rank makes its own: then the
/// first in that order that is not made yet has no member that waits for another one.
std::vector<CommunicatorKey> communicator_keys(std::span<const Program> programs);

/// Why there can be no communicators: "this build has no NCCL (...)", or what the loader says of
/// its library. Empty if there can.
std::string why_no_nccl();

/// The NCCL communicators of one rank, and kernels of their calls. One thread at a time. Sums of
/// bf16 are rounded at each rank that they pass (unlike the CPU's, which are rounded once); equal
/// on all ranks and in every run.
class Communicators {
 public:
  /// Makes the communicators of these programs on the device that is current, and connects their
  /// members by the first call of each kind, on memory of its own, together with the other ranks,
  /// which must do the same at the same time. `rendezvous` must outlive this. Throws
  /// DeviceError, ConfigError if this build has no NCCL, and AbortedError if another rank fails.
  Communicators(std::span<const Program> programs, Rendezvous& rendezvous);
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// The kernel of a task that has a communicator.
  CudaKernel make_kernel(const Program& program, const Task& task) const;

  /// Waits for the work on a stream. Throws DeviceError if it fails, AbortedError if there is a
  /// fault meanwhile: the parts of other ranks then never come. False if it has not ended within
  /// `limit`.
  bool wait(cudaStream_t stream,
            std::optional<std::chrono::nanoseconds> limit = std::nullopt) const;

  /// An error that NCCL has met since, or why another rank failed; nullopt if all is well.
  std::optional<std::string> fault() const;

  /// Ends all calls that wait, here; the communicators are then only good for destruction. Tells
  /// the other ranks why.
  void abort(const std::string& reason) noexcept;

 private:
  void connect(std::span<const Program> programs);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
