#pragma once

#include <vector>

#include "ir/verify.h"
#include "memory/memory_plan.h"

namespace braid {

/// Checks the plan of `program`, which is plan.programs[program_index], independently of the code
/// that made it:
///  - every buffer lies inside its arena at an aligned offset; persistent buffers are disjoint and
///    not on the host;
///  - for step buffers that share bytes, every access of one happens before every access of the
///    other, found by tracking the owner of each byte through the program.
/// Returns at most `max_violations`; empty means that the plan is valid. Near-linear in operands x
/// streams.
std::vector<Violation> verify_plan(const Program& program, const MemoryPlan& plan,
                                   size_t program_index, size_t max_violations = 16);

}  // namespace braid
