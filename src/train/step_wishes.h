#pragma once

#include <cstdint>
#include <string>

#include "comm/process_group.h"
#include "runtime/engine.h"

namespace braid {

/// Waits for the steps in flight. If another rank has failed and a task waits for it, the error
/// names the task.
void end_steps_in_flight(Engine& engine);

/// Exchanges what the processes wish after a step, all of which call it: returns the greatest
/// character of any process at each position of `own`, which is of the same length in all.
std::string greatest_wishes(Engine& engine, ProcessGroup& processes, int64_t step,
                            const std::string& own);

}  // namespace braid
