#pragma once

#include <span>
#include <vector>

#include "passes/runner.h"
#include "plan/run_plan.h"

namespace braid {

/// What each pass did on the planned ranks. Where ranks differ, the summary has a clause for each
/// kind: "rank 0: moved 45 messages; rank 4: moved 60 messages". Of more than three it names the
/// first, and counts the others. The number of changes and the duration are the largest of a rank;
/// the pass is skipped if it is on all ranks. Requires: all ranks ran the same passes.
std::vector<PassRecord> pass_records(std::span<const RankPlan> ranks);

}  // namespace braid
