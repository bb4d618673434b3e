#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"
#include "parallel/alike_ranks.h"
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
};

inline constexpr size_t kTrainProgram = 0;
inline constexpr size_t kEvalProgram = 1;

/// All that is decided before a device is touched: it can be printed, checked and simulated on a
/// machine that could not run it.
struct RunPlan {
  RunSpec run;             ///< whose plan this is
  ParameterLayout layout;  ///< of the whole model, as one rank would hold it
  std::vector<RankPlan> ranks;
  /// As PlanOptions::alike.
  AlikeRanks alike;
};

struct PlanOptions {
  /// Of compute, instead of RunSpec::dtype; f64 needs update_weights = false.
  std::optional<DType> dtype = {};
  /// False: the training program ends with the reduced main gradients, which then are persistent,
  /// and leaves the weights alone.
  bool update_weights = true;
  /// Plan only these ranks; empty: all. RunPlan::ranks follows this list.
  std::vector<int> ranks = {};
  /// Plan only the first rank of each pipeline stage (`first_rank_of_stages`), which stands for
  /// those that hold other parts or copies of the same layers. Not together with `ranks`.
  bool one_rank_per_stage = false;
  /// Ranks whose programs are equal but for the ranks of their groups (`structure_hash`); those
  /// that stand for others are planned. Empty: not known (see `rank_programs`).
  AlikeRanks alike = {};
  /// False: orders that are chosen for all ranks at once (`is_scheduled`) are not.
  bool schedule = true;
  /// For passes that weigh costs, see PassContext; must have a device for every rank of the
  /// run. Null: RunSpec::cost_model, and without one such passes do without. Not owned.
  const CostModel* cost_model = nullptr;
  /// Verify programs before the first and after each pass, unless BRAID_VERIFY says otherwise.
  /// False for a search, which builds hundreds of runs and keeps one.
  bool verify = true;
};

/// By position in the pipeline: the rank that is first in all other dimensions.
std::vector<int> first_rank_of_stages(const Mesh& mesh);

/// Builds every rank's programs, runs the passes, plans memory. Where all ranks are planned,
/// `verify_plan`, unless BRAID_VERIFY turns checks off. Throws ConfigError. Time and memory grow
/// with the planned ranks, not with those of the run.
RunPlan plan_run(const RunSpec& run, const PlanOptions& options = {});

/// Checks the programs of all ranks against each other, as after all passes (see verify_ranks.h).
/// All ranks must be planned, in order. Throws InternalError naming the program, ranks and tasks.
void verify_plan(const RunPlan& plan);

/// Programs of no run: with the passes of a run file that says nothing of them, and as the debug
/// variables of docs/env.md say. RankPlan::layout is empty.
RankPlan plan_programs(std::vector<Program> programs);

/// What a person wants to know before the run: model, ranks, tokens per step, passes, memory by
/// class.
std::string describe_run_plan(const RunPlan& plan);

}  // namespace braid
