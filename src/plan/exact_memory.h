#pragma once

#include "plan/run_plan.h"

namespace braid {

/// Plans the memory of a rank again that was planned for a search (PlanOptions::verify = false),
/// with the method that a run uses. Takes up to half a second per program. Ensures: the plan never
/// needs more bytes than the search's plan. Requires: the rank keeps its buffers.
MemoryPlan exact_memory(const RankPlan& rank);

}  // namespace braid
