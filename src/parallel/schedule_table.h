#pragma once

#include <string>
#include <vector>

#include "parallel/schedule_stats.h"

namespace braid {

struct ScheduleTableOptions {
  /// Longest line; columns in the middle are left out where there would be more. At least 40; 0: no
  /// limit.
  int max_width = 160;
};

/// The jobs of each rank as text for a terminal: a line per rank, a column per unit of time (the
/// largest that divides all times). A job is its letter (F forward, B backward, D dgrad, W wgrad),
/// microbatch and, where there are several, virtual stage; then "-" for as long as it lasts; "." is
/// idle time.
///
///   rank 0  F0 F1 .  .  .  B0 -  .  B1 -
///   rank 1  .  F0 B0 -  F1 B1 -  .  .  .
std::string schedule_table(const std::vector<std::vector<JobSlot>>& slots,
                           const ScheduleTableOptions& options = {});

}  // namespace braid
