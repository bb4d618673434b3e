#pragma once

#include <cstdint>
#include <vector>

#include "plan/run_plan.h"

namespace braid {

/// What the programs of a rank show to other ranks: hashes of their `call_lines`, by ProgramIndex.
/// Ranks that show the same are of one kind, and one of each kind is enough to check all of them:
/// there is a kind per pipeline stage, and a few more where small sums fall into one shard of many.
using ShownCalls = std::vector<uint64_t>;

ShownCalls shown_calls(const RankPlan& rank);

/// One planned rank of each kind.
struct PlannedKinds {
  AlikeRanks alike;                      ///< ranks that show the same calls
  std::vector<RankPlan> ranks;           ///< that were planned for this
  std::vector<const RankPlan*> of_kind;  ///< in `ranks`, or in another plan

  /// Of the rank that stands for `rank`.
  const RankPlan& of_rank(int rank) const {
    return *of_kind[alike.kind_of[static_cast<size_t>(rank)]];
  }
};

/// `alike` are ranks that show the same calls. Plans those that stand for others and that `plan`
/// has not, without what checks against other ranks do not need (PlanOptions::verify). `plan` must
/// outlive the result. Errors are `plan_run`'s.
PlannedKinds plan_kinds(const RunPlan& plan, AlikeRanks alike);

/// Plans all ranks, each verified, and keeps one of each kind: time grows with the ranks of the
/// run, memory with the kinds only. Errors are `plan_run`'s.
PlannedKinds plan_every_rank(const RunSpec& run);

/// Checks the programs of all ranks against each other (see verify_ranks.h), by one of each kind.
/// Throws InternalError naming the program, ranks and tasks.
void verify_kinds(const Mesh& mesh, const PlannedKinds& kinds);

/// Throws InternalError if a group of the rank's programs is not that of the mesh: what a kind
/// leaves out.
void check_groups(const Mesh& mesh, const RankPlan& rank);

}  // namespace braid
