#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/verify_ranks.h"
#include "plan/run_plan.h"

namespace braid {

/// The programs of all ranks of the run. A rank that is not planned gets the program of the first
/// planned rank at the same place in all dimensions but data (or of that rank's stand-in), or else
/// in all but data and tensor, or else at the same pipeline stage. `plan` must outlive the result
/// and stay at its address. Throws InternalError if a stage has no planned rank.
RankPrograms rank_programs(const RunPlan& plan, size_t program = kTrainProgram);

/// Gives each rank the groups of the mesh that have the names of its program's groups. Needed where
/// ranks share a program.
void take_groups_of(const Mesh& mesh, RankPrograms& ranks);

/// The ranks that lead the others when an order is chosen for all ranks at once (AllRanks): the
/// first in the tensor and data dimensions at each place in the others.
std::vector<int> leading_ranks(const Mesh& mesh);

/// By index in RunPlan::ranks: the index of the rank that it follows, or its own if it leads or its
/// leader is not planned.
std::vector<size_t> leaders_of(const RunPlan& plan);

/// Plans the ranks that a process running one rank of several needs: this rank, and the first rank
/// of each pipeline stage, whose state equals that of the other ranks of the stage; if the order of
/// tasks is chosen for all ranks at once (`is_scheduled`), all leading ranks. rank_kinds.h checks
/// that ranks fit together. Throws as `plan_run`.
RunPlan plan_for_rank(const RunSpec& run, int rank);

/// The plan of that rank. Throws InternalError if it is not planned.
const RankPlan& plan_of_rank(const RunPlan& plan, int rank);

}  // namespace braid
