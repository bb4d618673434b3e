#pragma once

#include <cstdint>

#include "parallel/schedule.h"

namespace braid {

/// Does the same as `check_schedule(options)`. Its messages give the value of train.global_batch,
/// which is the number of microbatches times `microbatch_sequences`, the sequences of one
/// microbatch over all data-parallel ranks.
void check_schedule(const ScheduleOptions& options, int64_t microbatch_sequences);

}  // namespace braid
