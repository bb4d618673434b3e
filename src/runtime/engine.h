#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "data/batch_loader.h"
#include "runtime/device.h"
#include "runtime/model_state.h"
#include "runtime/run_plan.h"
#include "trace/timeline.h"

namespace braid {

class Executor;

struct EngineOptions {
  int threads_per_rank = 1;  ///< of the CPU
  Device device = {};
  std::string cache_folder = {};   ///< of measured algorithm choices; empty: nothing is kept
  bool eager = false;              ///< on a GPU: task by task instead of one graph
  bool poison_step_arena = false;  ///< tests: fill step memory with NaN before each step
};

/// Threads for each of `num_ranks` ranks on this host: `configured`, or the cores divided by the
/// ranks if it is 0.
int threads_per_rank(int64_t configured, int64_t num_ranks);

struct StepResult {
  double loss = 0;       ///< mean over the global batch, in nats per token
  double grad_norm = 0;  ///< before clipping
  bool skipped = false;  ///< the gradient norm was not finite, so that nothing was updated
};

/// Executors of all ranks of this process and what the host exchanges with them between steps.
/// Not thread-safe. Any error of a step is a DeviceError, after which the engine is only good for
/// destruction.
class Engine {
 public:
  Engine(RunPlan plan, const EngineOptions& options);
  ~Engine();

  const RunPlan& plan() const { return plan_; }
  /// Bytes of all arenas of a rank, as allocated.
  int64_t allocated_bytes(int rank) const;

  /// One optimizer update with `batch`, which holds the data of all ranks. `step` counts from 1.
  StepResult train_step(const StepBatch& batch, const OptimizerConfig& optimizer,
                        double learning_rate, int64_t step);
  /// Mean loss of a batch of the same shape, weights unchanged.
  double evaluate(const StepBatch& batch);

  ModelState read_state() const;
  void write_state(const ModelState& state);

  void set_tracing(bool enabled);
  /// Last traced step of all ranks.
  Timeline timeline() const;

 private:
  std::unique_ptr<Executor> make_executor(size_t rank, const EngineOptions& options);
  void run_all(size_t program_index);
  void write_inputs(const StepBatch& batch);

  RunPlan plan_;
  std::string source_;  // of timelines
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Executor>> executors_;  // by rank
};

}  // namespace braid
