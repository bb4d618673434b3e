#pragma once

#include <span>
#include <string_view>

#include "passes/pass.h"

namespace braid {

/// A task of phase wgrad or comm that is to wait: it moves to directly behind `behind`, a later
/// one.
struct LateMove {
  TaskId task;
  TaskId behind;
};

/// A pass that moves tasks to later places and does nothing else. What stands on the way and
/// depends on a moved task moves along if it makes or reduces gradients (phases wgrad and comm, but
/// no messages); if anything else depends on it, the task stays where it is. So tasks that conflict
/// keep their order. Several at one place keep theirs. The report counts moves that were asked for
/// and made; `what` follows their number in its summary: "weight gradients behind 3 messages".
/// Near-linear in operands. Throws InternalError for moves that are none.
PassResult move_late(Program program, std::span<const LateMove> moves, std::string_view what);

}  // namespace braid
