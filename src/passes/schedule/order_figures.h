#pragma once

#include <cstdint>
#include <span>

#include "ir/program.h"
#include "parallel/verify_ranks.h"
#include "sim/list_schedule.h"
#include "sim/simulate.h"

namespace braid {

/// Mean duration of the tasks of each spec in a simulated step.
SpecTimes measured_spec_ns(const RankPrograms& ranks, const SimResult& result);

/// Counts weight gradients, and those whose place among the other tasks of their stream changed.
struct MovedWgrads {
  int64_t num_moved = 0;
  int64_t num_wgrads = 0;
};

/// Adds the counts of a program in a new order to `moved`.
void count_moved(const Program& program, std::span<const TaskId> order, MovedWgrads& moved);

}  // namespace braid
