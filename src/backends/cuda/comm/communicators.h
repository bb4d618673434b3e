#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/comm/communicator_keys.h"
#include "backends/cuda/comm/peer_memory.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/kernel.h"
#include "comm/rendezvous.h"
#include "ir/program.h"

namespace braid {

/// Why there can be no communicators: "this build has no NCCL (...)", or what the loader says of
/// its library. Empty if there can.
std::string why_no_nccl();

/// "NCCL 2.28.9 (libnccl.so.2), with symmetric windows", or why there is none.
std::string describe_nccl();

/// Why there can be no windows: "... needs NCCL 2.28 or newer". Empty if there can, as far as the
/// library goes.
std::string why_no_nccl_windows();

/// Memory that windows can be made of (ncclMemAlloc), and that GPUs of this process can reach. What
/// it gives is rounded up to the driver's pages, of 2 MiB.
const Allocator& nccl_window_allocator();

struct CommunicatorOptions {
  bool windows = false;  ///< of all collectives; else of those by copies, which need them
  /// Makes only these: all members of each agree on that. Nullopt: those of all tasks.
  std::optional<std::vector<CommunicatorKey>> keys = std::nullopt;
};

/// Where a rank's operands are.
struct OperandMemory {
  std::vector<SharedMemory> memory;  ///< as many on each rank
  std::function<std::byte*(size_t program, TaskId task, size_t operand)> address;
};

/// The NCCL communicators of one rank, and kernels of their calls. One thread at a time. Sums of
/// bf16 are rounded at each rank that they pass (unlike the CPU's, which are rounded once); equal
/// on all ranks and in every run.
class Communicators {
 public:
  /// Makes communicators of these programs on the device that is current, and connects their
  /// members by the first call of each kind, on memory of its own, together with the other ranks,
  /// which must do the same at the same time. `rendezvous` must outlive this. Throws
  /// DeviceError, ConfigError if this build has no NCCL, and AbortedError if another rank fails.
  Communicators(std::span<const Program> programs, Rendezvous& rendezvous,
                CommunicatorOptions options = {});
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// Whether some communicator is to have windows: its operands should then be in memory of
  /// `nccl_window_allocator`.
  bool wants_windows() const;

  /// Makes the memory of the operands windows of the communicators that are to have some, together
  /// with the other ranks, which must do the same at the same time, and runs the first call of each
  /// kind on it: the memory must be zero, so that this changes nothing. NCCL takes it that an
  /// operand lies at one offset in the windows of all members, and does not look: where memory
  /// plans differ, a communicator has no windows, and calls on it are as without. Before captures;
  /// the memory must outlive this. `programs` are those of the construction.
  void register_windows(std::span<const Program> programs, const OperandMemory& operands);

  /// One line per communicator that was to have windows and has none, and why.
  const std::vector<std::string>& without_windows() const;

  /// The kernel of a task that has a communicator.
  CudaKernel make_kernel(const Program& program, const Task& task) const;

  /// An error that NCCL has met since, or why another rank failed; nullopt if all is well.
  std::optional<std::string> fault() const;

  /// Ends all calls that wait, here, except those on windows, which NCCL has no means to end; waits
  /// for nothing. The communicators are then only good for destruction, which waits until no graph
  /// has calls of theirs. Tells the other ranks why.
  void abort(const std::string& reason) noexcept;

 private:
  void connect(std::span<const Program> programs);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
