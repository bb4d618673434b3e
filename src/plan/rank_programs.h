#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/verify_ranks.h"
#include "plan/run_plan.h"

namespace braid {

/// The programs of all ranks of the run, by those that are planned: a rank that is not is taken to
/// have the program of its stand-in; where none is known, that of the first planned one at its
/// place in all dimensions but data, or else at its pipeline stage. `plan` must
/// outlive the result and stay where it is. Throws InternalError if a stage has no planned rank.
RankPrograms rank_programs(const RunPlan& plan, size_t program = kTrainProgram);

/// Gives each rank the groups of the mesh that have the names of its program's groups, where ranks
/// share a program. `mesh` must outlive `ranks`.
void take_groups_of(const Mesh& mesh, RankPrograms& ranks);

/// The ranks to plan for `schedule_plan`, so that these get the order that they have in the whole
/// run: `ranks` and the first one of each place in all dimensions but data.
std::vector<int> ranks_to_schedule(const Mesh& mesh, std::vector<int> ranks);

/// Hash of the programs of a rank but for its number and the ranks of its groups, whose sizes
/// count.
uint64_t structure_hash(const RankPlan& rank);

/// What each rank of the run gave, by rank. Called by the processes of all ranks.
using GiveToAll = std::function<std::vector<uint64_t>(uint64_t own)>;

/// Plans what a process needs that runs one rank of several: this rank, and the first rank of each
/// pipeline stage, whose state the others of the stage have too. Where the order of tasks is chosen
/// for all ranks at once (`is_scheduled`), the first rank of each `structure_hash` instead of each
/// stage, so that processes agree on the order; the hashes are learned through `give_to_all`, and
/// without it all ranks are planned for that, one after the other. Whether ranks fit together is
/// checked by rank_kinds.h. Errors are `plan_run`'s.
RunPlan plan_for_rank(const RunSpec& run, int rank, const GiveToAll& give_to_all = {});

/// Throws InternalError if that rank is not planned.
const RankPlan& plan_of_rank(const RunPlan& plan, int rank);

}  // namespace braid
