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

/// Makes the kernel of a compute spec for pools of up to `num_workers` workers; several streams may
/// call the kernel's `run` at once.
using CpuKernelFactory = std::function<CpuKernel(const OpSpec& spec, int num_workers)>;

struct CpuExecutorOptions {
  Transport* transport = nullptr;  ///< this rank's end; must outlive the executor; may be null if
                                   ///< no task communicates
  int num_workers = 1;             ///< threads of each compute stream, including its own
  bool poison_step_arena = false;  ///< fill all memory of step buffers with NaN (0xFF) before each
                                   ///< step, so that reads of undefined memory show
  CpuKernelFactory make_kernel = {};  ///< default: make_cpu_kernel
  /// How long `wait` and the destructor wait for running tasks after this rank or, as reported by
  /// the transport, another one has failed.
  int64_t stuck_timeout_ns = 2'000'000'000;
  /// The other ranks do not exist: each call fills y with stand-in data and takes the given
  /// duration (comm/emulated_call.h). Requires no transport.
  std::optional<EmulatedPeers> emulated_peers = std::nullopt;
};

/// Runs the programs of one rank on the CPU: one thread per stream (streams of one name and kind
/// are one stream over all programs), events as counters of steps, two arenas (three if buffers are
/// placed on the host: the same memory here, but planned separately). The transport runs
/// communication, kernels run all other tasks. Kernels, calls, operand addresses and scratch are
/// made once, so a step allocates nothing.
///
/// When a task fails, tasks that depend on it do not run (the rest of its stream, and streams that
/// wait for one of these tasks), and the transport is aborted with the error's message, so that
/// other ranks stop too. `wait` then throws the first error as DeviceError (as AbortedError if it
/// is only a consequence of another rank's error):
///   "rank 1, stream compute, task 37 (linear layers.3 attention.qkv mb=0): <cause>".
/// `wait` also fails if the step is overdue (Transport::overdue): a task runs and only the caller
/// waits for it. A task is stuck if it has not ended CpuExecutorOptions::stuck_timeout_ns after
/// that, or after the failure of another rank. `wait` then reports it and does not wait for it (a
/// StuckError, see run_ranks.h, or appended to the first error). Destroying the executor while a
/// step runs abandons the step, and aborts the transport. If a task is stuck, its thread and the
/// memory that it may touch are leaked: a thread cannot be stopped from outside, and the process
/// should end soon.
class CpuExecutor : public Executor {
 public:
  /// `programs` of one rank with their events, and the plan that was made for them, in this order.
  /// Throws InternalError if they do not fit together or a task has no kernel, DeviceError if
  /// memory or threads cannot be allocated.
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
  void replace_programs(std::vector<Program> programs, MemoryPlan plan) override;
  void set_tracing(bool enabled) override;
  /// RankTimeline::step counts the launches of this executor from 0.
  RankTimeline timeline() const override;
  int64_t allocated_bytes() const override;
  int64_t allocated_host_bytes() const override;

  /// Host memory that the executor holds in addition to the arenas: scratch of the kernels,
  /// prepared tasks, events and trace records.
  int64_t workspace_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // leaked if threads are stuck
};

}  // namespace braid
