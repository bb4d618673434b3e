#pragma once

#include "calibrate/task_timer.h"

namespace braid {

/// Makes executors that consist of `num_ranks` executors of `make_one`, which all do the same at
/// the same time, each in its own memory: a launch runs on all, and ends when the last has ended.
/// So the ranks of one machine are timed while they share cores, caches and memory bandwidth. Reads
/// come from the first. The executors of `make_one` must return from a launch at once.
ExecutorFactory ranks_at_once(ExecutorFactory make_one, int num_ranks);

}  // namespace braid
