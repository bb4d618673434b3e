#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backends/cpu/kernel.h"
#include "backends/executor.h"
#include "comm/emulated_call.h"
#include "comm/transport.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// Makes the kernel of a compute spec for pools of up to `num_workers` workers; the kernel's `run`
/// may be called by several streams at once.
using CpuKernelFactory = std::function<CpuKernel(const OpSpec& spec, int num_workers)>;

struct CpuExecutorOptions {
  Transport* transport = nullptr;  ///< this rank's end; must outlive the executor; may be null if
                                   ///< no task communicates
  int num_workers = 1;             ///< threads of each compute stream, its own included
  bool poison_step_arena = false;  ///< fill all memory of step buffers with NaN (0xFF) before each
                                   ///< step, so that reads of undefined memory show
  CpuKernelFactory make_kernel = {};  ///< default: make_cpu_kernel
  /// How long `wait` and the destructor wait for running tasks once this rank or, as the transport
  /// knows, another one has failed.
  int64_t stuck_timeout_ns = 2'000'000'000;
  /// The other ranks are not there: each call fills y with a stand-in and takes as long as this
  /// says (comm/emulated_call.h). No transport then.
  std::optional<EmulatedPeers> emulated_peers = std::nullopt;
};

/// Runs the programs of one rank on the CPU: one thread per stream (streams of one name and kind
/// are one over all programs), events as counters of steps, two arenas (three with buffers that are
/// placed on the host: here the same memory, but planned apart). Communication goes
/// to the transport, all other tasks to kernels; kernels, calls, operand addresses and scratch are
/// made once, so a step allocates nothing.
///
/// When a task fails, what depends on it does not run (the rest of its stream, and streams that
/// wait for one of these tasks), and the transport is aborted with the message of the error, so
/// that other ranks stop too. `wait` then throws the error that came first as DeviceError (as
/// AbortedError if that was only the echo of another rank's error):
///   "rank 1, stream compute, task 37 (linear layers.3 attention.qkv mb=0): <cause>".
/// `wait` also fails where the step is overdue (Transport::overdue): a task runs that nobody waits
/// for but the caller. A task that has not ended CpuExecutorOptions::stuck_timeout_ns after that,
/// or after the failure of another rank, is stuck: `wait` says so and does not wait for it (a
/// StuckError, see run_ranks.h, or behind the error that came first). Destroying the executor while
/// a step runs abandons the step, and aborts the transport. Where a task is stuck, its thread and
/// the memory that it may touch are left behind: a thread cannot be ended from outside, and the
/// process should end soon.
class CpuExecutor : public Executor {
 public:
  /// `programs` of one rank with their events, and the plan that was made for them, in this order.
  /// Throws InternalError if they do not fit together or a task has no kernel, DeviceError if
  /// memory or threads cannot be had.
  CpuExecutor(std::vector<Program> programs, MemoryPlan plan, CpuExecutorOptions options);
  ~CpuExecutor() override;

  void launch(size_t program_index) override;
  void wait() override;
  void write(std::string_view buffer, int64_t offset_bytes,
             std::span<const std::byte> bytes) override;
  void read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) override;
  void enqueue_write(std::string_view buffer, int64_t offset_bytes,
                     std::span<const std::byte> bytes) override;
  void enqueue_read(std::string_view buffer, int64_t offset_bytes,
                    std::span<std::byte> bytes) override;
  void zero(std::string_view buffer) override;
  HostBlock host_block(int64_t size_bytes) override;
  void set_finite_checks(bool enabled) override;
  void set_tracing(bool enabled) override;
  /// RankTimeline::step counts the launches of this executor from 0.
  RankTimeline timeline() const override;
  int64_t allocated_bytes() const override;
  int64_t allocated_host_bytes() const override;

  /// Host memory besides the arenas that the executor holds for running: scratch of the kernels,
  /// prepared tasks, events and trace records.
  int64_t workspace_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // released where threads are stuck
};

}  // namespace braid
