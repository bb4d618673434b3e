#pragma once

#include <string>

#include "comm/process_group.h"
#include "runtime/engine.h"

namespace braid {

/// What the ranks of all processes counted in the step that the engine has ended last; nothing in
/// processes other than the first. All must call it.
StepTallies gather_tallies(const Engine& engine, ProcessGroup& processes);

/// Tallies as one process gives them to the others. `tallies_of` throws DataError for other bytes.
std::string tally_bytes(const StepTallies& tallies);
StepTallies tallies_of(const std::string& bytes);

}  // namespace braid
