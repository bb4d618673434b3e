#pragma once

#include <span>

#include "ir/program.h"

namespace braid {

/// A task that is to run beside others: it begins directly in front of `before`, on `stream`.
struct EarlyStart {
  TaskId task;
  TaskId before;  ///< an earlier task, or `task` itself: only the stream changes
  StreamId stream;
};

/// Moves tasks to earlier places and onto other streams, and says where the memory that they write
/// changes hands.
///   before: a(...) s0  b(...) s0  recv(-> x) s0  c(x -> y) s0              recv starts before b
///   after:  a(...) s0  undefine(-> x) s0  recv(-> x) s1  b(...) s0  c(x -> y) s0
/// Without the `undefine` on the stream that the task leaves, nothing would keep the other stream
/// from beginning at once, and so x would hold memory from the beginning of the step: with it, x
/// begins to live there. It is added for every step buffer that nothing has written before and that
/// the task writes in full, where the task changes streams. Several tasks at one place keep their
/// order, and all their `undefine`s stand in front of the first of them; one whose own place it is
/// counts among them. Events are dropped (without starts the program stays as it is). A pass counts
/// and reports; this only rewrites, by `rearrange`. O(operands). Throws InternalError if a task
/// would pass one that it conflicts with, is given twice, or would start later than it does.
Program start_early(const Program& program, std::span<const EarlyStart> starts);

}  // namespace braid
