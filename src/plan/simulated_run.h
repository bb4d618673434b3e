#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/run_plan.h"
#include "sim/cost_model.h"
#include "sim/critical_path.h"
#include "sim/price_changes.h"
#include "sim/simulate.h"
#include "trace/exposed.h"
#include "trace/idle.h"

namespace braid {

/// Scales `config` to another number of ranks (weak scaling). Tensor, context and pipeline stay;
/// the data dimension takes the remaining factor, and train.global_batch scales with it, so that
/// every rank keeps its microbatches. Throws ConfigError with the nearest valid numbers if the
/// ranks are not a multiple of tensor x context x pipeline, or the batch would not be an integer.
/// Requires: `config` is resolved. Ensures: the result is too.
RunConfig scaled_to_ranks(RunConfig config, int64_t num_ranks);

/// A simulated rank, which represents `num_ranks` equivalent ranks.
struct SimulatedRank {
  int rank = 0;
  int num_ranks = 0;
  int pipeline = 0;  ///< its stage
  RankTimes times;
  IdleTimes idle;
};

/// Memory of a pipeline stage, for the rank that needs most.
struct StageMemory {
  int rank = 0;
  int64_t needed_bytes = 0;  ///< as `rank_bytes`: what must fit into the device
  int64_t peak_bytes = 0;    ///< the part of it that is in the arenas
};

/// Mean times over all ranks of a step.
struct SimulatedMeans {
  double compute_ns = 0;
  double copy_ns = 0;  ///< time when only copies between device and host ran
  std::array<double, kNumGroupKinds> communication_ns{};  ///< by GroupKind
  std::array<double, kNumGroupKinds> exposed_ns{};        ///< by GroupKind; kinds may overlap
  double all_communication_ns = 0;
  double all_exposed_ns = 0;
  double warmup_ns = 0;
  double steady_ns = 0;
  double cooldown_ns = 0;
  std::array<double, kNumGroupKinds> idle_before_ns{};  ///< by GroupKind

  double idle_ns() const { return warmup_ns + steady_ns + cooldown_ns; }
};

/// The ranks whose programs a simulation plans.
enum class PlannedRanks : uint8_t {
  kEveryPlace,   ///< a rank per place in the tensor, context and pipeline dimensions; one of those
                 ///< that `fold_ranks` finds alike is planned. Uses all threads of the machine
  kOnePerStage,  ///< a rank per pipeline stage, which also stands for the tensor and context ranks
                 ///< beside it: these do as much (context ranks hold two chunks of each sequence,
                 ///< so that causal attention comes out even), in tasks of the same shapes. For
                 ///< searches: programs are not verified, and memory is planned quickly
  kEveryPlaceQuickly,  ///< as kEveryPlace, for searches; keeps buffers, for `exact_memory`
  kEveryPlaceInFull,   ///< all places, alike or not, with everything that it takes to run them
};

/// A simulated training step of a run. The device matters only through the cost model.
class SimulatedRun {
 public:
  /// Plans and simulates the ranks that `planned` selects. Each represents the ranks that differ
  /// only in the data dimension: they have the same tasks, except a few of the optimizer if state
  /// is sharded. `model`'s cluster must have a device for every rank, and `model` must outlive the
  /// run. Throws ConfigError as `plan_run`, and InternalError as `Simulator`.
  SimulatedRun(const RunSpec& run, const CostModel& model, const SimOptions& options = {},
               PlannedRanks planned = PlannedRanks::kEveryPlace);

  const RunSpec& spec() const { return plan_.run; }
  const RunPlan& plan() const { return plan_; }
  const CostModel& model() const { return model_; }
  const SimResult& result() const { return result_; }
  /// Time of the step if the busiest rank has `load` times the rows of experts of equal loads, and
  /// the others wait for it (RoutedRows).
  int64_t step_ns_with_load(double load) const;
  /// Time of the step with other prices of its tasks. The programs stay as they are.
  int64_t step_ns_with(const PriceChanges& changes) const;
  /// Simulates the step again with that load, of all ranks; everything else then tells of it.
  void set_routed_load(double load);
  /// The simulated programs. Valid as long as this object stays at its address.
  RankPrograms rank_programs() const;

  /// Time of the step: the tasks plus the host's overhead.
  int64_t step_ns() const { return result_.step_ns + model_.step_overhead_ns(); }
  double tokens_per_s() const;  ///< over all ranks
  /// Model FLOPs (`train_flops_per_token`) per second and rank; `mfu` is that divided by the
  /// device's peak.
  double flops_per_s_per_rank() const;
  double mfu() const;

  const std::vector<SimulatedRank>& ranks() const { return ranks_; }
  const SimulatedMeans& means() const { return means_; }
  /// The rank with the least idle time; the others wait for it.
  const SimulatedRank& busiest() const;
  std::vector<StageMemory> memory_by_stage() const;
  /// The plan of this rank, or the one that stands for it, with its buffers.
  RankPlan plan_with_buffers(int rank) const;
  /// What the step waited for, through all ranks (sim/critical_path.h); the host's part of the step
  /// follows it.
  std::vector<PathTask> critical_path() const;
  /// Timelines of these ranks. Throws ConfigError for a rank that the run does not have.
  Timeline timeline(std::span<const int> ranks) const;

 private:
  /// Simulates the step at the clock that its mix of kernels gives, and takes its figures.
  void run_step();
  void analyze();

  const CostModel& model_;
  SimOptions options_;
  RunPlan plan_;
  std::shared_ptr<const MatchedPrograms> programs_;
  double routed_load_ = 1.0;
  std::vector<double> rank_clock_;  // of its PriceChanges
  SimResult result_;
  std::vector<SimulatedRank> ranks_;
  SimulatedMeans means_;
};

}  // namespace braid
