#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backends/cuda/kernel.h"
#include "backends/executor.h"
#include "comm/emulated_call.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

class CudaContext;
class Rendezvous;

using CudaKernelFactory = std::function<CudaKernel(const OpSpec& spec, CudaContext& context)>;

enum class CudaStepMode {
  kGraph,  ///< a step is one launch of a graph, if the rank exchanges no messages
  kEager,  ///< the host enqueues the tasks one by one; bitwise equal to the graph
};

struct CudaExecutorOptions {
  CudaStepMode mode = CudaStepMode::kGraph;
  bool poison_step_arena = false;  ///< fill all memory of step buffers with NaN (0xFF) before each
                                   ///< step, so that reads of undefined memory show
  bool sync_each_task =
      false;  ///< eager, and wait for each task before the next, except for those that communicate
              ///< with other ranks: device errors then name their task, not only the step
  CudaKernelFactory make_kernel = {};  ///< default: make_cuda_kernel
  /// Connects ranks that communicate; must outlive the executor. Several executors may share it if
  /// all ranks construct theirs in one order. Null: a run of one rank.
  Rendezvous* rendezvous = nullptr;
  bool nccl_windows = false;  ///< register the memory of all collectives with NCCL: see
                              ///< CommunicatorOptions
  /// Limit for steps in which ranks communicate. A step fails if it takes longer than this plus ten
  /// times the longest step of its program, since a rank must be stuck. For the first two steps of
  /// a program the limit is ten times this value. 0: no limit.
  int64_t timeout_ns = 0;
  /// The other ranks do not exist, and their part of communication is emulated (emulated_calls.h).
  /// Requires no rendezvous. Results are meaningless, times are valid.
  std::optional<EmulatedPeers> emulated_peers = std::nullopt;
};

/// Runs the programs of one rank on one GPU: a stream per stream of the programs (those of one name
/// and kind are one over all programs) with its priority, an event per event, two arenas of exactly
/// the planned sizes, and one in page-locked host memory for buffers that are placed there.
/// Addresses, kernels, scratch and graphs are made once, so a step allocates nothing.
///
/// With CudaStepMode::kGraph each program is captured at construction and a step is one graph
/// launch, except in a rank that exchanges messages (device_rank.cpp says why). The first step of
/// each program runs task by task, so that a launch that the device refuses becomes an error of its
/// task. A traced step runs in the same way if CUPTI can time it, otherwise task by task with
/// events between tasks (step_tracer.h); both give the same bytes.
///
/// Two steps may be in flight, so that the device continues with the next step without the host.
/// All steps, and the transfers that are enqueued between them, are ordered on one stream, and an
/// event after each step and its reads marks its end. Ranks may then be one step apart; what orders
/// the tasks of a step across ranks also orders those of two steps (copy_steps.h explains why).
///
/// Steps, tasks that the host enqueues, captures and launches of graphs are NVTX ranges of the
/// domain "braid".
///
/// A task that cannot be enqueued fails as on the CPU: nothing after it is enqueued, and `wait`
/// throws DeviceError
///   "rank 1, stream compute, task 37 (linear layers.3 attention.qkv mb=0): <cause>".
/// An error of the device itself (for example a bad address) ends the whole step, and all other
/// work of the process on that device; see sync_each_task.
///
/// If tasks communicate with other ranks (communicators.h), all ranks construct their executors at
/// the same time, and launch at the same time: construction and launch wait for the other ranks.
/// When the constructor returns, all ranks have allocated everything that their steps need from the
/// driver: memory and access to that of others, kernels, graphs. Later calls that need more
/// (host_block, set_tracing) are only allowed while no rank of the process has a step in flight.
/// When a rank fails, `wait` ends on all of them, and names the task that waits for it, also in a
/// graph (step_progress.h): AbortedError
///   "rank 0, step 5 of program step, stream comm.data, task 31 (all_reduce head): in group data:
///   <reason>".
class CudaExecutor : public Executor {
 public:
  /// `programs` of one rank with their events, and the plan that was made for them, in this order.
  /// `context` must outlive the executor. Throws InternalError if they do not fit together, a task
  /// has no kernel, a buffer is in peer-visible memory, or a task communicates with other ranks and
  /// there is no rendezvous; DeviceError if memory cannot be allocated or a task cannot be
  /// captured.
  CudaExecutor(std::vector<Program> programs, MemoryPlan plan, CudaContext& context,
               CudaExecutorOptions options);
  ~CudaExecutor() override;

  void launch(size_t program_index) override;
  int max_steps_in_flight() const override;
  std::chrono::nanoseconds lateness() const override;
  bool launch_may_wait() const override;
  void wait() override;
  void write(std::string_view buffer, int64_t offset_bytes,
             std::span<const std::byte> bytes) override;
  void read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) override;
  void enqueue_write(std::string_view buffer, int64_t offset_bytes,
                     std::span<const std::byte> bytes) override;
  void enqueue_read(std::string_view buffer, int64_t offset_bytes,
                    std::span<std::byte> bytes) override;
  void zero(std::string_view buffer) override;
  /// On the device, at the speed of its memory.
  uint64_t hash(std::span<const BufferElems> parts) override;
  HostBlock host_block(int64_t size_bytes) override;
  void set_finite_checks(bool enabled) override;
  /// All ranks that communicate call it at the same time, each in its own thread, with no step of
  /// any of them in flight. Not with emulated ranks.
  void replace_programs(std::vector<Program> programs, MemoryPlan plan) override;
  /// All ranks that communicate call it at the same time, each in its own thread.
  void set_tracing(bool enabled) override;
  /// RankTimeline::step counts the launches of this executor from 0.
  RankTimeline timeline() const override;
  int64_t allocated_bytes() const override;
  int64_t allocated_host_bytes() const override;
  std::string last_meeting() const override;
  std::vector<std::string> notes() const override;

  /// Device memory in addition to the arenas: scratch of the kernels, one block per stream, and a
  /// word for `set_finite_checks` and `hash`. Excludes the driver's memory for streams and graphs.
  int64_t workspace_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
