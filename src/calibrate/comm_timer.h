#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/profile.h"

namespace braid {

/// Times communication without links between ranks that are threads of this process: synchronizing,
/// copying, adding, all ranks at once. Measures collectives, and shifts for messages, of these
/// sizes (of the whole buffer, in f32), in groups of every size from 2 up that divides `num_ranks`.
/// Each point is the median of `num_samples`. Returns no points for one rank.
std::vector<CommPoint> time_in_process_communication(int num_ranks,
                                                     std::span<const int64_t> sizes_bytes,
                                                     int num_samples);

}  // namespace braid
