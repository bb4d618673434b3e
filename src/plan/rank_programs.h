#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/verify_ranks.h"
#include "plan/run_plan.h"

namespace braid {

/// The programs of all ranks of the run. A rank that is not planned gets the program of its
/// stand-in. If no stand-in is known, it gets the program of the first planned rank at the same
/// place in all dimensions but data, or else at the same pipeline stage. `plan` must outlive the
/// result and stay at its address. Throws InternalError if a stage has no planned rank.
RankPrograms rank_programs(const RunPlan& plan, size_t program = kTrainProgram);

/// Gives each rank the groups of the mesh that have the names of its program's groups. Needed where
/// ranks share a program. `mesh` must outlive `ranks`.
void take_groups_of(const Mesh& mesh, RankPrograms& ranks);

/// The ranks to plan for `schedule_plan` so that `ranks` get the same order as in the whole run:
/// `ranks`, and the first rank at each place in all dimensions but data.
std::vector<int> ranks_to_schedule(const Mesh& mesh, std::vector<int> ranks);

/// Hash of the programs of a rank. Excludes the rank number and the members of its groups; includes
/// the sizes of the groups.
uint64_t structure_hash(const RankPlan& rank);

/// All-gather of one value per rank; the result is indexed by rank. The processes of all ranks must
/// call it.
using GiveToAll = std::function<std::vector<uint64_t>(uint64_t own)>;

/// Plans the ranks that a process running one rank of several needs: this rank, and the first rank
/// of each pipeline stage, whose state equals that of the other ranks of the stage. If the order of
/// tasks is chosen for all ranks at once (`is_scheduled`), it plans the first rank of each
/// `structure_hash` instead, so that processes agree on the order. The hashes come through
/// `give_to_all`; without it, all ranks are planned one after the other to compute them.
/// rank_kinds.h checks that ranks fit together. Throws as `plan_run`.
RunPlan plan_for_rank(const RunSpec& run, int rank, const GiveToAll& give_to_all = {});

/// The plan of that rank. Throws InternalError if it is not planned.
const RankPlan& plan_of_rank(const RunPlan& plan, int rank);

}  // namespace braid
