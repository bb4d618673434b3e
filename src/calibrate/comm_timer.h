#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/profile.h"

namespace braid {

/// Times what ranks that are threads of this process take for communication over no link: meeting,
/// copying, adding, all ranks at once. Collectives, and shifts for messages, of these sizes (of the
/// whole buffer, in f32), in groups of every size from 2 up that divides `num_ranks`. Each point is
/// the median of `num_samples`. None for one rank.
std::vector<CommPoint> time_in_process_communication(int num_ranks,
                                                     std::span<const int64_t> sizes_bytes,
                                                     int num_samples);

}  // namespace braid
