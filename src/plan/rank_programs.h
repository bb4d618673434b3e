#pragma once

#include <cstddef>
#include <vector>

#include "parallel/verify_ranks.h"
#include "plan/run_plan.h"

namespace braid {

/// The programs of all ranks of the run, by those that are planned: a rank that is not is taken to
/// have the program of the first planned one at its place in the tensor, context and pipeline
/// dimensions, or else at its pipeline stage. `plan` must outlive the result and stay where it is.
/// Throws InternalError if a stage has no planned rank.
RankPrograms rank_programs(const RunPlan& plan, size_t program = kTrainProgram);

/// The ranks to plan for `schedule_plan`, so that these get the order that they have in the whole
/// run: `ranks` and the first one of each place in the tensor, context and pipeline dimensions.
std::vector<int> ranks_to_schedule(const Mesh& mesh, std::vector<int> ranks);

}  // namespace braid
