#pragma once

#include "calibrate/task_timer.h"

namespace braid {

/// Makes executors that are `num_ranks` of those that `make_one` makes, which all do the same at
/// the same time, each in memory of its own: a launch runs on all, and ends when the last has
/// ended. So ranks of one machine are timed with what they take from each other: cores, caches,
/// bandwidth of memory. What is read comes from the first. `make_one` must give executors whose
/// launch returns at once.
ExecutorFactory ranks_at_once(ExecutorFactory make_one, int num_ranks);

}  // namespace braid
