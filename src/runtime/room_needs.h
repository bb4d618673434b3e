#pragma once

#include <string>

#include "plan/run_plan.h"
#include "runtime/memory_check.h"

namespace braid {

/// What a run may need beyond its plan because steps run again with more room for rows of experts
/// (RunSpec::reruns_overflow): a line with the memory of a rank now and with room for all rows, and
/// one more if that does not fit. Empty if no step can lack room. Plans up to two ranks per
/// pipeline stage.
///   overflow moe.capacity = 1.25 needs 12.3 GiB per rank; steps with more rows run again with more
///   room, up to 14.1 GiB
std::string describe_more_room(const RunPlan& plan, const RunMemory& memory);

}  // namespace braid
