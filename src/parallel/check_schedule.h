#pragma once

#include <cstdint>

#include "parallel/schedule.h"

namespace braid {

/// As `check_schedule` of the options alone, whose messages say train.global_batch as it is where a
/// microbatch has so many sequences over all data-parallel ranks.
void check_schedule(const ScheduleOptions& options, int64_t microbatch_sequences);

}  // namespace braid
