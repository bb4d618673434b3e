#pragma once

#include <vector>

#include "plan/run_plan.h"
#include "sim/cost_model.h"

namespace braid {

/// Of `ranks`, those that must be planned, and for each other one the planned rank whose programs
/// stand for its own: in a simulation with these costs, every task of the two takes equally long,
/// and passes and memory plans treat them alike. Compares the programs before any pass, of one
/// microbatch (TrainProgramOptions::outline). They may differ in
///  - the ranks of groups, if these lie alike on the nodes of the cluster;
///  - the place in a tensor that `part_begin` of an op names, if the price is the same.
/// Usually all tensor ranks but the first are alike; the first also counts in the gradient norm
/// what all of them hold. The first of alike ranks is planned; if orders are chosen for all ranks
/// at once (RunSpec::is_scheduled), the first of each context rank. Uses `num_threads` threads (0:
/// all of the machine). Throws as `plan_run`.
struct FoldedRanks {
  std::vector<int> planned;        ///< in the order of `ranks`
  std::vector<StandIn> stand_ins;  ///< of the others, in the same order
};
FoldedRanks fold_ranks(const RunSpec& run, const std::vector<int>& ranks, const CostModel& model,
                       int num_threads);

}  // namespace braid
