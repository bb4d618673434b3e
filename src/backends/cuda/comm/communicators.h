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

/// Why there can be no communicators: "this build has no NCCL (...)", or the loader's message.
/// Empty if they are available.
std::string why_no_nccl();

/// "NCCL 2.28.9 (libnccl.so.2), with symmetric windows", or why NCCL is unavailable.
std::string describe_nccl();

/// Why there can be no windows: "... needs NCCL 2.28 or newer". Empty if the library supports them.
std::string why_no_nccl_windows();

/// Memory that can be registered as windows (ncclMemAlloc), and that GPUs of this process can
/// access. Sizes are rounded up to the driver's pages of 2 MiB.
const Allocator& nccl_window_allocator();

struct CommunicatorOptions {
  bool windows = false;  ///< for all collectives; otherwise only for those by copies, which need
                         ///< them
  /// Makes only these; all members of each must agree on that. Nullopt: those of all tasks.
  std::optional<std::vector<CommunicatorKey>> keys = std::nullopt;
};

/// The memory of a rank's operands.
struct OperandMemory {
  std::vector<SharedMemory> memory;  ///< the same number on each rank
  std::function<std::byte*(size_t program, TaskId task, size_t operand)> address;
};

/// The NCCL communicators of one rank, and kernels of their calls. One thread at a time. Sums of
/// bf16 are rounded at each rank that they pass (unlike the CPU's, which are rounded once); they
/// are equal on all ranks and in every run.
class Communicators {
 public:
  /// Makes communicators of these programs on the current device, and connects their members by the
  /// first call of each kind, on temporary memory. All ranks must do this at the same time.
  /// `rendezvous` must outlive this object. Throws DeviceError, ConfigError if this build has no
  /// NCCL, and AbortedError if another rank fails.
  Communicators(std::span<const Program> programs, Rendezvous& rendezvous,
                CommunicatorOptions options = {});
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// Whether any communicator should have windows: its operands should then be in memory of
  /// `nccl_window_allocator`.
  bool wants_windows() const;

  /// Registers the memory of the operands as windows of the communicators that should have them,
  /// and runs the first call of each kind on it. All ranks must do this at the same time. The
  /// memory must be zero, so that the calls change nothing. NCCL assumes, without a check, that an
  /// operand has the same offset in the windows of all members. If memory plans differ, a
  /// communicator has no windows, and its calls work without them. Call before captures; the memory
  /// must outlive this object. `programs` are those given at construction.
  void register_windows(std::span<const Program> programs, const OperandMemory& operands);

  /// One line per communicator that should have windows and has none, with the reason.
  const std::vector<std::string>& without_windows() const;

  /// The kernel of a task that has a communicator.
  CudaKernel make_kernel(const Program& program, const Task& task) const;

  /// An asynchronous NCCL error, or why another rank failed; nullopt if there is none.
  std::optional<std::string> fault() const;

  /// Ends all waiting calls on this rank, except those on windows, which NCCL cannot end; does not
  /// wait. The communicators can then only be destroyed; destruction waits until no graph contains
  /// their calls. Tells the other ranks the reason.
  void abort(const std::string& reason) noexcept;

 private:
  void connect(std::span<const Program> programs);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
