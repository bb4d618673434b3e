#pragma once

#include <span>

#include "memory/memory_plan.h"

namespace braid {

/// `plan_memory` that looks for offsets a few milliseconds per program instead of up to half a
/// second: for searches over programs, of which one is kept. No arena is smaller than there.
MemoryPlan plan_memory_quickly(std::span<const Program* const> programs);

}  // namespace braid
