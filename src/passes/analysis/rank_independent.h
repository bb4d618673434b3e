#pragma once

#include <cstdint>

#include "ir/program.h"

namespace braid {

class CostModel;

/// Prices for passes that decide by them: ranks of a group, which must decide alike, ask for what a
/// task takes on the first of them.

/// The program with rank 0, and each group as if it began there. To be priced, not to be run.
Program at_first_ranks(Program program);

/// The spec that the first tensor rank has: a product whose bias another rank adds is one that adds
/// it.
OpSpec at_first_rank(OpSpec spec);

/// Nanoseconds of a task of `program`, which is `at_first_ranks`. Throws InternalError for an op
/// that the model cannot price.
int64_t rank_independent_ns(const CostModel& model, const Program& program, TaskId task);

}  // namespace braid
