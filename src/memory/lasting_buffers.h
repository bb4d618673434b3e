#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// Whether what a step buffer holds at the end of a step is still there in the next.
enum class Lasting : uint8_t {
  kNot,
  kAmongOthers,  ///< or what another one of the dtype held: they share memory with each other
  kAlone,
};

/// A plan in which some buffers last: they lie behind the arena, and those that share memory do by
/// the rules of `plan_memory`. All else is as in `plan`. `lasting` is by program and BufferId; of
/// buffers that are persistent, on the host or not used it is not looked at. Throws InternalError
/// if the three do not fit together.
MemoryPlan with_lasting_buffers(const MemoryPlan& plan, std::span<const Program> programs,
                                std::span<const std::vector<Lasting>> lasting);

}  // namespace braid
