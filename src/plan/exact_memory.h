#pragma once

#include "plan/run_plan.h"

namespace braid {

/// The memory of a rank that was planned for a search (PlanOptions::verify = false), as a run of
/// the same programs plans it: up to half a second per program, and never more bytes.
MemoryPlan exact_memory(const RankPlan& rank);

}  // namespace braid
