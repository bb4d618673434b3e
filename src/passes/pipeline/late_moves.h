#pragma once

#include <span>
#include <string_view>

#include "passes/pass.h"

namespace braid {

/// A task of phase wgrad or comm to delay: it moves to directly behind the later task `behind`.
struct LateMove {
  TaskId task;
  TaskId behind;
};

/// The whole work of a pass that only moves tasks to later places. A task in between that depends
/// on a moved task moves with it if its phase is wgrad or comm and it is not a message. If any
/// other task depends on it, the move is not made. So tasks that conflict keep their order. Tasks
/// that move to one place keep theirs. The report counts the requested moves that were made. `what`
/// follows this number in the summary: "weight gradients behind 3 messages". Near-linear in
/// operands. Throws InternalError for an invalid move.
PassResult move_late(Program program, std::span<const LateMove> moves, std::string_view what);

}  // namespace braid
