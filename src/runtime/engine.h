#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "comm/process_group.h"
#include "comm/rendezvous.h"
#include "comm/transport.h"
#include "data/batch_loader.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "runtime/device_shards.h"
#include "runtime/step_exchange.h"
#include "state/state_map.h"
#include "state/state_transfer.h"
#include "trace/timeline.h"

namespace braid {

struct EngineOptions {
  int threads_per_rank = 1;  ///< of the CPU
  Device device = {};
  /// Those of the run, a rank each; must outlive the engine. Null: all ranks are in this process.
  ProcessGroup* processes = nullptr;
  std::string cache_folder = {};        ///< of measured algorithm choices; empty: nothing is kept
  int64_t timeout_ns = 60'000'000'000;  ///< how long a rank waits for others before the step fails
  int64_t stuck_timeout_ns = 2'000'000'000;  ///< and then for tasks that run, on the CPU
  LinkOptions links = {};                    ///< that are emulated between CPU ranks
  bool repeatable = true;       ///< on a GPU: the same bits in every run, at some cost in attention
  bool nccl_windows = false;    ///< on several GPUs: as runtime.nccl_windows
  bool eager = false;           ///< on a GPU: task by task instead of one graph
  bool sync_each_task = false;  ///< on a GPU: wait for each task before the next
  int steps_in_flight = 2;      ///< at most; see Engine::begin_step
  bool poison_step_arena = false;  ///< tests: fill step memory with NaN before each step
  /// Tests: makes the executor of a rank instead of the backend.
  std::function<std::unique_ptr<Executor>(std::vector<Program> programs, MemoryPlan plan,
                                          const RankOptions& options, int rank)>
      make_executor = {};
  /// Tests: puts something in front of the executor of a rank.
  std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor> made, int rank)> wrap_executor =
      {};
};

/// Threads for each of `num_ranks` ranks on this host: `configured`, or the cores divided by the
/// ranks if it is 0.
int threads_per_rank(int64_t configured, int64_t num_ranks);

struct StepResult {
  double loss = 0;          ///< mean over the global batch, in nats per token
  double grad_norm = 0;     ///< before clipping
  bool skipped = false;     ///< the gradient norm was not finite, so that nothing was updated
  int64_t lateness_ns = 0;  ///< for how long the step had ended when it was finished here
};

/// Executors of the ranks of this process and what the host exchanges with them between steps.
/// Where a run has several processes, each has an engine of the same plan, all make the same calls,
/// and all get the same results. Not thread-safe. Any error of a step is a DeviceError, after which
/// the engine is only good for destruction.
class Engine {
 public:
  Engine(RunPlan plan, const EngineOptions& options);
  /// Waits for the steps in flight.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const RunPlan& plan() const { return plan_; }
  /// Bytes of all arenas of a rank of this process, as allocated.
  int64_t allocated_bytes(int rank) const;
  /// `Executor::notes` of the ranks here, each once.
  std::vector<std::string> notes() const;

  /// Steps that may have begun and not been finished: what the options say, as far as the executors
  /// of the ranks can.
  int max_steps_in_flight() const { return max_in_flight_; }
  /// Of the first rank of this process: see Executor.
  std::string last_meeting() const { return executors_.front()->last_meeting(); }
  int steps_in_flight() const { return static_cast<int>(num_begun_ - num_finished_); }
  /// Launches one optimizer update with `batch`, which holds the data of all ranks and is not
  /// needed afterwards, behind the steps in flight: the device goes from one to the next without
  /// the host. `step` counts from 1. The results are bitwise those of steps one by one. With steps
  /// in flight, no other function of the engine may be called but this one and `finish_step`.
  void begin_step(const StepBatch& batch, const OptimizerConfig& optimizer, double learning_rate,
                  int64_t step);
  /// Waits for the oldest step in flight.
  StepResult finish_step();
  /// Both.
  StepResult train_step(const StepBatch& batch, const OptimizerConfig& optimizer,
                        double learning_rate, int64_t step);
  /// Runs the last training step again, with its inputs, and looks at everything that its tasks
  /// write: throws DeviceError with task, buffer and element of the first NaN or infinity; returns
  /// if there is none. Bitwise the same step if that one was skipped, which changed no weight.
  void check_last_step();
  /// Mean loss of a batch of the same shape, weights unchanged.
  double evaluate(const StepBatch& batch);

  /// What is on the devices now, each element from the first rank that has it, if all of them are
  /// in this process. The engine must outlive it.
  DeviceState state() const;
  /// The same cut among the ranks, for a checkpoint that each of them writes a part of; what ranks
  /// of other processes write has no source here.
  DeviceShards state_shards() const;
  /// Fills the weights and the optimizer state of the ranks here, piece by piece;
  /// `threads_per_rank` threads for each of them share the work. See `write_state` of
  /// state_transfer.h.
  void write_state(const StateSource& source);

  void set_tracing(bool enabled);
  /// Last traced step of all ranks; in other processes than the first one nothing.
  Timeline timeline() const;

 private:
  void connect(const EngineOptions& options);
  std::unique_ptr<Executor> make_executor(size_t local, const EngineOptions& options);
  void make_executors(const EngineOptions& options);
  std::vector<Executor*> executors() const;
  std::vector<Executor*> executors_by_rank() const;
  std::vector<RankTimeline> collect_timelines() const;
  void run_all(size_t program_index);
  std::vector<int64_t> positions_of(size_t rank, const StepBatch& batch) const;
  void fill_inputs(size_t local, const StepBatch& batch, const StepExchange::Values& values) const;
  void write_eval_inputs(size_t local, const StepBatch& batch, int64_t microbatch);
  double sum_of_losses(const std::vector<float>& own) const;

  bool has_buffer(size_t rank, size_t program_index, std::string_view name) const;

  RunPlan plan_;
  StateMap state_map_;
  std::string source_;                                   // of timelines
  ProcessGroup* processes_ = nullptr;                    // if there are several
  std::vector<size_t> ranks_;                            // of this process; the rest is parallel
  int num_threads_ = 1;                                  // of all of them
  std::vector<std::unique_ptr<Transport>> transports_;   // of ranks on the CPU
  std::vector<std::unique_ptr<Rendezvous>> rendezvous_;  // of ranks in this one process
  std::vector<std::unique_ptr<Executor>> executors_;
  bool tracing_ = false;  // the transfers of a step are then none of its timeline
  int max_in_flight_ = 1;
  std::vector<StepExchange> exchanges_;  // with the executors
  int64_t num_begun_ = 0;                // training steps
  int64_t num_finished_ = 0;
};

}  // namespace braid
