#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"
#include "parallel/mesh.h"
#include "parallel/parameter_layout.h"
#include "passes/runner.h"
#include "plan/run_spec.h"
#include "sim/cost_model.h"

namespace braid {

/// The programs of one rank after all passes, with their memory.
struct RankPlan {
  ParameterLayout layout;
  std::vector<Program> programs;  ///< by ProgramIndex
  MemoryPlan memory;
  std::vector<PassRecord> passes;  ///< of the training program
  /// The programs have no buffers, and of operands only the ranges of tasks that communicate, of no
  /// buffer: a simulation reads nothing else, and these are most bytes of a program.
  /// `memory` has no offsets of step buffers.
  bool no_buffers = false;
};

inline constexpr size_t kTrainProgram = 0;
inline constexpr size_t kEvalProgram = 1;

/// A rank that is not planned, because the programs of `by` stand for its own (fold_ranks.h).
struct StandIn {
  int rank = 0;
  int by = 0;

  friend bool operator==(const StandIn&, const StandIn&) = default;
};

/// Everything that is decided before a device is used. A plan can be printed, checked and simulated
/// on a machine that could not run it.
struct RunPlan {
  RunSpec run;             ///< the planned run
  ParameterLayout layout;  ///< of the whole model, as one rank would hold it
  std::vector<RankPlan> ranks;
  std::vector<StandIn> stand_ins = {};  ///< of ranks that are simulated and not planned
};

struct PlanOptions {
  /// Compute dtype, instead of RunSpec::dtype. f64 needs update_weights = false.
  std::optional<DType> dtype = {};
  /// False: the training program ends with the reduced main grads, which are then persistent, and
  /// does not update the weights.
  bool update_weights = true;
  /// Plan only these ranks; empty: all. RunPlan::ranks follows this list.
  std::vector<int> ranks = {};
  /// Ranks for which some of `ranks` stand in a simulation.
  std::vector<StandIn> stand_ins = {};
  /// Plan only the first rank of each pipeline stage (`first_rank_of_stages`). It represents the
  /// ranks that hold other parts or copies of the same layers. Cannot be combined with `ranks`.
  bool one_rank_per_stage = false;
  /// With one_rank_per_stage: only these ranks choose an order for all ranks (`is_scheduled`), and
  /// also stand for context ranks, whose tasks differ slightly. For a search, which is faster so.
  bool stages_lead = false;
  /// False: do not run the passes that choose an order for all ranks at once (`is_scheduled`).
  bool schedule = true;
  /// Cost model for passes that compare costs, see PassContext; must have a device for every rank
  /// of the run. Null: use RunSpec::cost_model; if that is null too, these passes run without
  /// costs. Not owned.
  const CostModel* cost_model = nullptr;
  /// Verify programs before the first and after each pass, unless BRAID_VERIFY overrides it. False
  /// for a search, which builds hundreds of runs and keeps one.
  bool verify = true;
  /// Only to be simulated. With `verify`, only programs of three stages (first, middle, last) are
  /// verified, of one rank each: those of the others come from the same passes over the same kinds
  /// of layers. Of all ranks but the first of each of the first stages, no buffers are kept
  /// (RankPlan::no_buffers).
  bool for_simulation = false;
  /// Plan so many ranks at once; 0: as many as the machine has threads. Does not change the result.
  int num_threads = 1;
};

/// The first rank of each pipeline stage, by stage: its index is 0 in all other dimensions.
std::vector<int> first_rank_of_stages(const Mesh& mesh);

/// Builds the programs of every rank, runs the passes and plans memory. If all ranks are planned,
/// also calls `verify_plan`, unless BRAID_VERIFY turns checks off. Throws ConfigError. Time and
/// memory grow with the planned ranks, not with the ranks of the run.
RunPlan plan_run(const RunSpec& run, const PlanOptions& options = {});

/// Checks the programs of all ranks against each other, as they are after all passes (see
/// verify_ranks.h). Requires: all ranks are planned, in order. Throws InternalError naming the
/// program, ranks and tasks.
void verify_plan(const RunPlan& plan);

/// Plans programs that belong to no run. The passes have the settings of an empty run file and of
/// the debug variables in docs/env.md. RankPlan::layout is empty.
RankPlan plan_programs(std::vector<Program> programs);

/// Summary shown before a run: model, ranks, tokens per step, passes, memory by class.
std::string describe_run_plan(const RunPlan& plan);

}  // namespace braid
