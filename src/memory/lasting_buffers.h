#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// Whether a step buffer keeps its content until the next step.
enum class Lasting : uint8_t {
  kNot,
  kAmongOthers,  ///< it keeps its content or that of another buffer of its dtype: these buffers
                 ///< share memory with each other
  kAlone,
};

/// A plan in which some buffers last: they lie behind the arena. Buffers that are `kAmongOthers`
/// share memory by the rules of `plan_memory`. Everything else is as in `plan`. `lasting` is by
/// program and BufferId; entries of persistent, host and unused buffers are ignored. Throws
/// InternalError if the three arguments do not fit together.
MemoryPlan with_lasting_buffers(const MemoryPlan& plan, std::span<const Program> programs,
                                std::span<const std::vector<Lasting>> lasting);

}  // namespace braid
