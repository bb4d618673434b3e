#pragma once

#include <span>

#include "memory/memory_plan.h"

namespace braid {

/// Like `plan_memory`, but searches for offsets for about ten milliseconds per program instead of
/// up to half a second. For searches over many programs. An arena is never smaller than that of
/// `plan_memory`.
MemoryPlan plan_memory_quickly(std::span<const Program* const> programs);

}  // namespace braid
