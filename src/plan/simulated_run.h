#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/run_plan.h"
#include "sim/cost_model.h"
#include "sim/simulate.h"
#include "trace/exposed.h"
#include "trace/idle.h"

namespace braid {

/// `config` for another number of ranks: tensor, context and pipeline stay, the data dimension
/// takes what is left, and train.global_batch grows or shrinks with it, so that every rank keeps
/// its microbatches (weak scaling). Throws ConfigError with the nearest valid numbers if the ranks
/// are no multiple of tensor x context x pipeline, or the batch would not be whole. `config` must
/// be resolved; the result is too.
RunConfig scaled_to_ranks(RunConfig config, int64_t num_ranks);

/// A simulated rank, and those that cannot be told apart from it.
struct SimulatedRank {
  int rank = 0;
  int num_ranks = 0;
  int pipeline = 0;  ///< its stage
  RankTimes times;
  IdleTimes idle;
};

/// Memory of the ranks of a pipeline stage.
struct StageMemory {
  int rank = 0;  ///< the one that needs most
  int64_t peak_bytes = 0;
};

/// Means over all ranks of what the ranks of a step did.
struct SimulatedMeans {
  double compute_ns = 0;
  double copy_ns = 0;  ///< only copies between device and host ran
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

/// Whose programs a simulation plans.
enum class PlannedRanks : uint8_t {
  kEveryPlace,   ///< a rank per place in the tensor, context and pipeline dimensions
  kOnePerStage,  ///< a rank per pipeline stage, which also stands for the tensor and context ranks
                 ///< beside it: these do as much (context ranks hold two chunks of each sequence,
                 ///< so that causal attention comes out even), in tasks of the same shapes. For
                 ///< searches: programs are not verified, and memory is planned quickly
  kEveryPlaceQuickly,  ///< as kEveryPlace, for searches
};

/// A training step of a run, simulated. All that a device has to do with it is the cost model.
class SimulatedRun {
 public:
  /// Plans and simulates the ranks that `planned` says. Each stands for those that differ in their
  /// place in the data dimension only: they have the same tasks but for a few of the optimizer,
  /// where state is sharded. `model`'s cluster must have a device for every rank, and `model`
  /// outlive the run. Throws ConfigError as `plan_run`, and InternalError as `Simulator`.
  SimulatedRun(const RunSpec& run, const CostModel& model, const SimOptions& options = {},
               PlannedRanks planned = PlannedRanks::kEveryPlace);

  const RunSpec& spec() const { return plan_.run; }
  const RunPlan& plan() const { return plan_; }
  const CostModel& model() const { return model_; }
  const SimResult& result() const { return result_; }
  /// The programs that were simulated. Valid as long as the run stays where it is.
  RankPrograms rank_programs() const;

  /// Of the tasks and the host's part.
  int64_t step_ns() const { return result_.step_ns + model_.step_overhead_ns(); }
  double tokens_per_s() const;  ///< over all ranks
  /// Model FLOPs (`train_flops_per_token`) per second and rank, and as a part of the device's peak.
  double flops_per_s_per_rank() const;
  double mfu() const;

  const std::vector<SimulatedRank>& ranks() const { return ranks_; }
  const SimulatedMeans& means() const { return means_; }
  /// The rank that is idle least: what the others wait for.
  const SimulatedRank& busiest() const;
  std::vector<StageMemory> memory_by_stage() const;
  /// Timelines of these ranks. Throws ConfigError for a rank that the run does not have.
  Timeline timeline(std::span<const int> ranks) const;

 private:
  void analyze();

  const CostModel& model_;
  RunPlan plan_;
  SimResult result_;
  std::vector<SimulatedRank> ranks_;
  SimulatedMeans means_;
};

}  // namespace braid
