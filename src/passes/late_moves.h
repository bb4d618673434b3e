#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"

namespace braid {

/// A task of phase wgrad or comm that is to wait: it moves to directly behind `behind`, a later
/// one.
struct LateMove {
  TaskId task;
  TaskId behind;
};

struct LateMoves {
  std::vector<TaskId> order;  ///< of all tasks
  int64_t num_moved = 0;      ///< of those asked for
  int64_t num_stuck = 0;      ///< asked for, but they stay: see below
};

/// The order after moving tasks to later places. What stands on the way and depends on a moved task
/// moves along if it makes or reduces gradients (phases wgrad and comm, but no messages); if
/// anything else depends on it, the task stays where it is. So tasks that conflict keep their
/// order. Several at one place keep theirs. Near-linear in operands. Throws InternalError for moves
/// that are none.
LateMoves move_late(const Program& program, std::span<const LateMove> moves);

}  // namespace braid
