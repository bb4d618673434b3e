#pragma once

#include <cstdint>

#include "ir/program.h"

namespace braid {

class CostModel;

/// Durations that are the same on all ranks of a group, for passes whose decisions must agree on
/// these ranks. All ranks use the durations on the first rank of the group.

/// Returns the program with rank 0, and with each group shifted to start at rank 0. Only for
/// pricing; such a program cannot run.
Program at_first_ranks(Program program);

/// Returns the spec that the first tensor rank has. If only one rank adds the bias of a product,
/// the returned spec adds it.
OpSpec at_first_rank(OpSpec spec);

/// Duration in ns of a task of `program`, which must come from `at_first_ranks`. Throws
/// InternalError for an op that the model cannot price.
int64_t rank_independent_ns(const CostModel& model, const Program& program, TaskId task);

}  // namespace braid
