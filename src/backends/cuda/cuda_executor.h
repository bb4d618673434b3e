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
  kGraph,  ///< a step is one launch of a graph
  kEager,  ///< the host enqueues task by task; bitwise equal to the graph
};

struct CudaExecutorOptions {
  CudaStepMode mode = CudaStepMode::kGraph;
  bool poison_step_arena = false;  ///< fill all memory of step buffers with NaN (0xFF) before each
                                   ///< step, so that reads of undefined memory show
  bool sync_each_task =
      false;  ///< eager, and wait for each task, unless it meets other ranks, before the next:
              ///< errors of the device, which otherwise name only the step, then name their task
  CudaKernelFactory make_kernel = {};  ///< default: make_cuda_kernel
  /// Where ranks that communicate meet; must outlive the executor. Several executors may share it
  /// if all ranks construct theirs in one order. Null: a run of one rank.
  Rendezvous* rendezvous = nullptr;
  bool nccl_windows = false;  ///< register the memory of all collectives with NCCL: see
                              ///< CommunicatorOptions
  /// Of steps in which ranks communicate: one that takes so much longer than ten times the longest
  /// step of its program before it fails, since a rank must be stuck; the first two of a program
  /// may take ten times as long as this. 0: no limit.
  int64_t timeout_ns = 0;
  /// The other ranks are not there, and their part of communication is emulated (emulated_calls.h);
  /// no rendezvous then. Results are worth nothing, times are.
  std::optional<EmulatedPeers> emulated_peers = std::nullopt;
};

/// Runs the programs of one rank on one GPU: a stream per stream of the programs (those of one name
/// and kind are one over all programs) with its priority, an event per event, two arenas of exactly
/// the planned sizes, and one in page-locked host memory for buffers that are placed there.
/// Addresses, kernels, scratch and graphs are made once, so that a step
/// allocates nothing.
///
/// With CudaStepMode::kGraph each program is captured at construction and a step is one graph
/// launch, except the first step of each program, which runs task by task so that a launch that the
/// device refuses is an error of its task. A traced step runs in the same way if CUPTI can time it,
/// else task by task with events between tasks (step_tracer.h); either gives the same bytes.
///
/// Two steps may be in flight, so that the device goes from one to the next without the host: all
/// steps, and the transfers that are enqueued between them, are in the order of one stream, and an
/// event behind each step and its reads tells when it has ended. Ranks may then be a step apart;
/// what orders the tasks of a step across ranks orders those of two (copy_steps.h says why).
///
/// Steps, tasks that the host enqueues, captures and launches of graphs are NVTX ranges of the
/// domain "braid".
///
/// A task that cannot be enqueued fails as on the CPU: nothing after it is enqueued, and `wait`
/// throws DeviceError
///   "rank 1, stream compute, task 37 (linear layers.3 attention.qkv mb=0): <cause>".
/// An error of the device itself (a bad address, say) ends the whole step, and all other work of
/// the process on that device; see sync_each_task.
///
/// Where tasks communicate with other ranks (communicators.h), all ranks construct their executors
/// at the same time, and launch at the same time: either waits for the others. When the constructor
/// returns, all ranks have what their steps take of the driver: memory and access to that of
/// others, kernels, graphs. What takes more later (host_block, set_tracing) must come while no rank
/// of the process has a step in flight. When a rank fails, `wait` ends on all of them, and names
/// the task that waits for it, in a graph, too (step_progress.h): AbortedError
///   "rank 0, step 5 of program step, stream comm.data, task 31 (all_reduce head): in group data:
///   <reason>".
class CudaExecutor : public Executor {
 public:
  /// `programs` of one rank with their events, and the plan that was made for them, in this order.
  /// `context` must outlive the executor. Throws InternalError if they do not fit together, a task
  /// has no kernel, a buffer is in peer-visible memory, or a task communicates with other ranks and
  /// there is no rendezvous;
  /// DeviceError if memory cannot be had or a task cannot be captured.
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
  HostBlock host_block(int64_t size_bytes) override;
  void set_finite_checks(bool enabled) override;
  /// Ranks that communicate are switched at the same time, each in a thread of its own.
  void set_tracing(bool enabled) override;
  /// RankTimeline::step counts the launches of this executor from 0.
  RankTimeline timeline() const override;
  int64_t allocated_bytes() const override;
  int64_t allocated_host_bytes() const override;
  std::string last_meeting() const override;
  std::vector<std::string> notes() const override;

  /// Device memory besides the arenas: scratch of the kernels, one block per stream, and a word for
  /// `set_finite_checks`. What the driver takes for streams and graphs is its own.
  int64_t workspace_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
