#pragma once

#include <cstdint>
#include <vector>

#include "parallel/alike_ranks.h"
#include "plan/run_plan.h"

namespace braid {

/// The part of a rank's programs that other ranks can observe: hashes of their `call_lines`, by
/// ProgramIndex. Ranks with equal hashes are of one kind, and checking one rank of each kind checks
/// all ranks. There is one kind per pipeline stage, and a few more where small sums fall into one
/// shard of many.
using ShownCalls = std::vector<uint64_t>;

ShownCalls shown_calls(const RankPlan& rank);

/// One planned rank of each kind.
struct PlannedKinds {
  AlikeRanks alike;                      ///< ranks that show the same calls
  std::vector<RankPlan> ranks;           ///< planned for this check
  std::vector<const RankPlan*> of_kind;  ///< points into `ranks` or another plan

  /// The plan of the rank that represents `rank`.
  const RankPlan& of_rank(int rank) const {
    return *of_kind[alike.kind_of[static_cast<size_t>(rank)]];
  }
};

/// Plans the representatives in `alike` that `plan` does not contain, without data that checks
/// against other ranks do not need (PlanOptions::verify). `alike` groups ranks that show the same
/// calls. `plan` must outlive the result. Throws as `plan_run`.
PlannedKinds plan_kinds(const RunPlan& plan, AlikeRanks alike);

/// Plans and verifies all ranks, and keeps one of each kind. Time grows with the ranks of the run,
/// memory only with the kinds. Throws as `plan_run`.
PlannedKinds plan_every_rank(const RunSpec& run);

/// Checks the programs of all ranks against each other (see verify_ranks.h), using one rank of each
/// kind. Throws InternalError naming the program, ranks and tasks.
void verify_kinds(const Mesh& mesh, const PlannedKinds& kinds);

/// Throws InternalError if a group of the rank's programs differs from that of the mesh. Kinds do
/// not cover this.
void check_groups(const Mesh& mesh, const RankPlan& rank);

}  // namespace braid
