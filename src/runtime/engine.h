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
#include "report/records.h"
#include "runtime/device.h"
#include "runtime/device_shards.h"
#include "runtime/evaluation.h"
#include "runtime/rank_routing.h"
#include "runtime/replica_check.h"
#include "runtime/step_exchange.h"
#include "runtime/step_tallies.h"
#include "state/state_map.h"
#include "state/state_transfer.h"
#include "trace/timeline.h"

namespace braid {

struct EngineOptions {
  int threads_per_rank = 1;  ///< on the CPU
  Device device = {};
  /// The processes of the run, one rank each; must outlive the engine. Null: all ranks are in this
  /// process.
  ProcessGroup* processes = nullptr;
  std::string cache_folder = {};        ///< of measured algorithm choices; empty: nothing is kept
  int64_t timeout_ns = 60'000'000'000;  ///< time that a rank waits for others before the step fails
  int64_t stuck_timeout_ns = 2'000'000'000;  ///< additional wait for running tasks, on the CPU
  LinkOptions links = {};                    ///< emulated between CPU ranks
  bool repeatable = true;       ///< on a GPU: the same bits in every run, at some cost in attention
  bool nccl_windows = false;    ///< on several GPUs: like runtime.nccl_windows
  bool eager = false;           ///< on a GPU: task by task instead of one graph
  bool sync_each_task = false;  ///< on a GPU: wait for each task before the next
  int steps_in_flight = 2;      ///< maximum; see Engine::begin_step
  bool poison_step_arena = false;  ///< tests: fill step memory with NaN before each step
  /// For tests: makes the executor of a rank instead of the backend.
  std::function<std::unique_ptr<Executor>(std::vector<Program> programs, MemoryPlan plan,
                                          const RankOptions& options, int rank)>
      make_executor = {};
  /// For tests: wraps the executor of a rank.
  std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor> made, int rank)> wrap_executor =
      {};
};

/// Threads for each of `num_ranks` ranks on this host: `configured`, or if that is 0, the cores
/// divided by the ranks.
int threads_per_rank(int64_t configured, int64_t num_ranks);

struct StepResult {
  double loss = 0;                      ///< mean over the global batch, in nats per token
  std::vector<double> mtp_losses = {};  ///< the same of each depth of multi-token prediction
  std::optional<double> z_loss = {};    ///< with train.z_loss: mean squared log-sum-exp of logits
  std::optional<PreferenceRecord> preference = {};  ///< `loss` is then the mean over pairs
  double grad_norm = 0;                             ///< before clipping
  bool skipped = false;     ///< the gradient norm was not finite, so nothing was updated
  int64_t reruns = 0;       ///< times that it ran again because rows of experts had no room
  int64_t lateness_ns = 0;  ///< time between the end of the step and the end of the wait for it
};

/// The executors of this process's ranks, and the data that the host exchanges with them between
/// steps. If a run has several processes, each has an engine of the same plan, all make the same
/// calls, and all get the same results. Not thread-safe. Any error of a step is a DeviceError,
/// after which the engine can only be destroyed.
///
/// With RunSpec::reruns_overflow, a step that lacked room for rows of experts runs again, with the
/// same inputs and programs that have twice the room, until they have enough. Such a step has
/// updated nothing, because gradients of dropped rows are NaN (ops/expert_exchange.h). The engine
/// keeps the larger programs, so this happens a few times in a run; they are planned when they are
/// needed, because memory for them may never be. Evaluations do the same. While rows may lack room,
/// one step is in flight: the next one would begin with weights that lack an update.
///
/// With RunSpec::documents, batches must know which token ends a document.
class Engine {
 public:
  Engine(RunPlan plan, const EngineOptions& options);
  /// Waits for the steps in flight.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const RunPlan& plan() const { return plan_; }
  /// Allocated bytes of all arenas of a rank of this process.
  int64_t allocated_bytes(int rank) const;
  /// `Executor::notes` of this process's ranks, without duplicates.
  std::vector<std::string> notes() const;

  /// Maximum number of steps in flight: that of the options, limited by the executors.
  int max_steps_in_flight() const { return max_in_flight_; }
  /// Of the first rank of this process: see Executor.
  std::string last_meeting() const { return executors_.front()->last_meeting(); }
  int steps_in_flight() const { return static_cast<int>(num_begun_ - num_finished_); }
  /// Launches one optimizer update after the steps in flight; the device continues from one to the
  /// next without the host. `batch` holds the data of all ranks and is not needed after the call.
  /// `step` counts from 1. The results are bitwise those of steps one by one. With steps in flight,
  /// only this function and `finish_step` may be called.
  void begin_step(const StepBatch& batch, const OptimizerConfig& optimizer, double learning_rate,
                  int64_t step);
  /// Waits for the oldest step in flight.
  StepResult finish_step();
  /// Of the step that `finish_step` has ended last, before the next `begin_step`: one for each
  /// place on each rank of this process.
  StepTallies tallies() const;
  /// `begin_step` and `finish_step`.
  StepResult train_step(const StepBatch& batch, const OptimizerConfig& optimizer,
                        double learning_rate, int64_t step);
  /// Runs the last training step again, with its inputs, and checks everything that its tasks
  /// write. Throws DeviceError with task, buffer and element of the first NaN or infinity; returns
  /// if there is none. It is bitwise the same step if that one was skipped, since no weight
  /// changed.
  void check_last_step();
  /// ReplicaCheck::difference: none if all ranks that hold the same elements of the state hold the
  /// same bits. All processes call it, with no step in flight.
  ReplicaDifference replica_difference();
  /// Mean loss of a batch of the same shape, weights unchanged. A NaN that comes from rows without
  /// room makes it run again, as a training step.
  EvaluationResult evaluate(const StepBatch& batch);
  /// With RunSpec::preference: the log-probability of the labels of each sample of a batch of the
  /// same shape, in the order of samples, with the weights as they are. All processes get them.
  std::vector<float> log_probabilities(const StepBatch& batch);

  /// The current state on the devices, each element from the first rank that has it; requires all
  /// ranks in this process. The engine must outlive it.
  DeviceState state() const;
  /// The same divided among the ranks, for a checkpoint of which each rank writes a part; shards of
  /// other processes have no source in this one.
  DeviceShards state_shards() const;
  /// Fills the weights and the optimizer state of this process's ranks, piece by piece;
  /// `threads_per_rank` threads for each of them share the work. See `write_state` of
  /// state_transfer.h.
  void write_state(const StateSource& source);

  void set_tracing(bool enabled);
  /// The last traced step of all ranks; empty in processes other than the first.
  Timeline timeline() const;

 private:
  void connect(const EngineOptions& options);
  std::unique_ptr<Executor> make_executor(size_t local, const EngineOptions& options);
  void make_executors(const EngineOptions& options);
  std::vector<Executor*> executors() const;
  std::vector<Executor*> executors_by_rank() const;
  std::vector<RankTimeline> collect_timelines() const;
  void launch_slot(size_t slot);
  void wait_for_slot(size_t slot);
  StepResult result_of(size_t slot) const;
  void begin_routing(size_t slot, int64_t step);
  void open_routing_record();
  void record_routing(size_t slot) const;
  bool lacked_room(size_t slot) const;
  bool make_more_room();
  Evaluation evaluation() const;

  RunPlan plan_;
  StateMap state_map_;
  std::string source_;                                   // of timelines
  ProcessGroup* processes_ = nullptr;                    // if there are several
  std::vector<size_t> ranks_;                            // of this process; vectors below are
                                                         // parallel to it
  int num_threads_ = 1;                                  // of all its ranks
  std::vector<std::unique_ptr<Transport>> transports_;   // of CPU ranks
  std::vector<std::unique_ptr<Rendezvous>> rendezvous_;  // of ranks, if there is only this process
  std::vector<std::unique_ptr<Executor>> executors_;
  bool tracing_ = false;  // excludes a step's transfers from its timeline
  int max_in_flight_ = 1;
  std::vector<StepExchange> exchanges_;            // with the executors
  std::vector<TallyReader> tallies_;               // with the executors
  std::vector<RankRouting> routing_;               // with the executors
  std::unique_ptr<RoutingSource> routing_source_;  // of choices that are not the routers'
  std::unique_ptr<RoutingRecord> routing_record_;  // if choices are recorded
  int64_t first_step_ = 0;                         // of this engine; 0: none has begun
  std::vector<int64_t> step_of_slot_;
  int64_t num_begun_ = 0;  // training steps
  int64_t num_finished_ = 0;
  std::unique_ptr<ReplicaCheck> replicas_;  // from the first check on
};

}  // namespace braid
