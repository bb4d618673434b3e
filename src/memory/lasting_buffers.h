#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// Lasting buffers of at most so many bytes share memory with nothing.
inline constexpr int64_t kSharedLastingBytes = int64_t{1} << 20;

/// A plan in which what some buffers hold at the end of a step is still there in the next, or is
/// what another of them held: they lie behind the arena, large ones of one dtype share memory with
/// each other by the rules of `plan_memory`, small ones with nothing. All else is as in `plan`.
/// `lasting` is by program and BufferId; of buffers that are persistent, on the host or not used it
/// is not looked at. Throws InternalError if the three do not fit together.
MemoryPlan with_lasting_buffers(const MemoryPlan& plan, std::span<const Program> programs,
                                std::span<const std::vector<bool>> lasting);

}  // namespace braid
