#pragma once

#include <string>
#include <vector>

#include "parallel/schedule_stats.h"

namespace braid {

struct ScheduleTableOptions {
  /// Maximum line length, at least 40; 0: no limit. Columns in the middle are omitted if lines
  /// would be longer.
  int max_width = 160;
};

/// Prints the jobs of each rank for a terminal: a line per rank, a column per unit of time (the
/// largest that divides all times). A job is its letter (F forward, B backward, D dgrad, W wgrad),
/// microbatch and, if there are several, virtual stage; "-" follows for the rest of its duration;
/// "." is idle time.
///
///    rank 0  F0 F1 .  .  .  B0 -  .  B1 -
///    rank 1  .  F0 B0 -  F1 B1 -  .  .  .
std::string schedule_table(const std::vector<std::vector<JobSlot>>& slots,
                           const ScheduleTableOptions& options = {});

}  // namespace braid
