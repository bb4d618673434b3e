#pragma once

#include <span>

#include "ir/program.h"

namespace braid {

/// A task that starts earlier: directly in front of `before`, on `stream`.
struct EarlyStart {
  TaskId task;
  TaskId before;  ///< an earlier task; `task` itself changes only the stream
  StreamId stream;
};

/// Moves tasks to earlier places and onto other streams. Adds an `undefine` where another stream
/// takes over the memory that they write.
///   before: a(...) s0  b(...) s0  recv(-> x) s0  c(x -> y) s0              recv starts before b
///   after:  a(...) s0  undefine(-> x) s0  recv(-> x) s1  b(...) s0  c(x -> y) s0
/// The `undefine` runs on the task's old stream, and x begins to live there. Without it the other
/// stream could start at once, and x would hold memory from the beginning of the step. An
/// `undefine` is added when the task changes streams, for every step buffer that it writes in full
/// and that nothing has written before.
///
/// Tasks that start at one place keep their order, including a task that is already there. All
/// their `undefine`s stand in front of the first of them. Events are dropped; without starts the
/// program does not change. Counting and reporting is left to the calling pass. O(operands), by
/// `rearrange`. Throws InternalError if a task would pass one that it conflicts with, is given
/// twice, or would start later than now.
Program start_early(Program program, std::span<const EarlyStart> starts);

}  // namespace braid
